// Boxes and masks out of raw outputs: YOLO v5 to v11 (also with masks), end-to-end YOLO, RT-DETR, DETR,
// SSD as torchvision and TensorFlow export it, and segmentation maps. All in pixels of the model's input.

const SCORE = 0.25; // boxes below it are not shown
const OVERLAP = 0.45; // of two boxes of one class that overlap more, the better stays
const BOXES = 100;

// The binary form of an Open Inference Protocol answer: JSON, then the tensors in its order.
function parseTensors(buffer, jsonSize) {
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 0, jsonSize)));
  const kinds = { FP32: Float32Array, FP64: Float64Array, INT32: Int32Array, UINT8: Uint8Array, INT8: Int8Array,
    INT64: BigInt64Array, UINT64: BigUint64Array, BOOL: Uint8Array };
  let at = jsonSize;
  return head.outputs.map((output) => {
    const size = output.parameters ? output.parameters.binary_data_size : 0;
    const kind = kinds[output.datatype];
    const bytes = buffer.slice(at, at + size);
    at += size;
    let data = kind ? new kind(bytes) : new Float32Array(0);
    if (data instanceof BigInt64Array || data instanceof BigUint64Array) data = Float64Array.from(data, Number);
    return { name: output.name, datatype: output.datatype, shape: output.shape, data };
  });
}

function sigmoid(x) { return 1 / (1 + Math.exp(-x)); }

function bestOf(count, valueAt) {
  let best = 0;
  for (let i = 1; i < count; i++) if (valueAt(i) > valueAt(best)) best = i;
  return best;
}

function overlap(a, b) {
  const w = Math.min(a.x + a.w, b.x + b.w) - Math.max(a.x, b.x);
  const h = Math.min(a.y + a.h, b.y + b.h) - Math.max(a.y, b.y);
  if (w <= 0 || h <= 0) return 0;
  return (w * h) / (a.w * a.h + b.w * b.h - w * h);
}

function suppress(boxes) {
  boxes.sort((a, b) => b.score - a.score);
  const kept = [];
  for (const box of boxes) {
    if (kept.length === BOXES) break;
    if (!kept.some((k) => k.label === box.label && overlap(k, box) > OVERLAP)) kept.push(box);
  }
  return kept;
}

function centred(cx, cy, w, h, rest) { return { x: cx - w / 2, y: cy - h / 2, w, h, ...rest }; }

// Rows of cx, cy, w, h and scores; `at(row, column)`. Boxes within 0 … 1 are shares of the input.
function boxesOfRows(rows, columns, at, input, layout) {
  const boxes = [];
  let greatest = 0;
  for (let r = 0; r < rows; r++) {
    const best = bestOf(layout.classes, (i) => at(r, layout.first + i));
    const score = at(r, layout.first + best) * (layout.objectness ? at(r, 4) : 1);
    if (!(score >= SCORE)) continue;
    const [cx, cy, w, h] = [0, 1, 2, 3].map((i) => at(r, i));
    greatest = Math.max(greatest, cx, cy, w, h);
    boxes.push(centred(cx, cy, w, h, { score, label: best, row: r }));
  }
  if (boxes.length && greatest <= 2) {
    for (const b of boxes) {
      b.x *= input.width; b.w *= input.width; b.y *= input.height; b.h *= input.height;
    }
  }
  return layout.keepAll ? boxes.sort((a, b) => b.score - a.score).slice(0, BOXES) : suppress(boxes);
}

// YOLO's masks: 32 prototypes, of which each box has its own mixture.
function yoloMasks(boxes, at, columns, prototypes, input) {
  const [, count, height, width] = prototypes.shape;
  const data = prototypes.data;
  for (const box of boxes) {
    const mix = Array.from({ length: count }, (_, i) => at(box.row, columns - count + i));
    box.mask = {
      inside(x, y) {
        if (x < box.x || y < box.y || x > box.x + box.w || y > box.y + box.h) return false;
        const px = Math.min(width - 1, Math.floor((x / input.width) * width));
        const py = Math.min(height - 1, Math.floor((y / input.height) * height));
        let sum = 0;
        for (let i = 0; i < count; i++) sum += mix[i] * data[(i * height + py) * width + px];
        return sum > 0;
      },
    };
  }
}

function decodeYolo(output, prototypes, input, labelCount) {
  const [, a, b] = output.shape;
  const data = output.data;
  if (b === 6 && a <= 1000) return decodeEndToEnd(data, a);
  const byRows = a > b || a <= 1000 && labelCount > 0 && b === 4 + labelCount;
  const [rows, columns] = byRows ? [a, b] : [b, a];
  const at = byRows ? (r, c) => data[r * b + c] : (r, c) => data[c * b + r];
  const masks = prototypes ? prototypes.shape[1] : 0;
  // Rows with few boxes are RT-DETR's; with many, YOLO v5's, which have an objectness.
  const queries = byRows && rows <= 1000;
  const objectness = byRows && !queries;
  const first = objectness ? 5 : 4;
  const classes = columns - first - masks;
  if (classes < 1) return null;
  const boxes = boxesOfRows(rows, columns, at, input, { first, classes, objectness, keepAll: queries });
  if (prototypes) yoloMasks(boxes, at, columns, prototypes, input);
  return boxes;
}

function decodeEndToEnd(data, rows) {
  const boxes = [];
  for (let r = 0; r < rows; r++) {
    const [x1, y1, x2, y2, score, label] = data.subarray(r * 6, r * 6 + 6);
    if (score >= SCORE) boxes.push({ x: x1, y: y1, w: x2 - x1, h: y2 - y1, score, label, row: r });
  }
  return boxes.sort((p, q) => q.score - p.score).slice(0, BOXES);
}

// Logits with a class for "nothing" at the end, and boxes as shares of the input.
function decodeDetr(logits, places, input) {
  const [, rows, columns] = logits.shape;
  const boxes = [];
  for (let r = 0; r < rows; r++) {
    const row = logits.data.subarray(r * columns, (r + 1) * columns);
    const top = Math.max(...row);
    const sum = row.reduce((s, v) => s + Math.exp(v - top), 0);
    const label = bestOf(columns - 1, (i) => row[i]);
    const score = Math.exp(row[label] - top) / sum;
    if (!(score >= SCORE)) continue;
    const [cx, cy, w, h] = places.data.subarray(r * 4, r * 4 + 4);
    boxes.push(centred(cx * input.width, cy * input.height, w * input.width, h * input.height, { score, label, row: r }));
  }
  return boxes.sort((p, q) => q.score - p.score).slice(0, BOXES);
}

// Lists of corners, scores and classes. TensorFlow's are shares, top before left.
function decodeLists(places, scores, labels, input) {
  const shares = places.shape.length === 3;
  const boxes = [];
  for (let r = 0; r < scores.data.length; r++) {
    if (!(scores.data[r] >= SCORE)) continue;
    let [x1, y1, x2, y2] = places.data.subarray(r * 4, r * 4 + 4);
    if (shares) [x1, y1, x2, y2] = [y1 * input.width, x1 * input.height, y2 * input.width, x2 * input.height];
    boxes.push({ x: x1, y: y1, w: x2 - x1, h: y2 - y1, score: scores.data[r], label: labels.data[r], row: r });
  }
  return boxes.sort((p, q) => q.score - p.score).slice(0, BOXES);
}

// A class a pixel: {width, height, at(x, y) of the map}.
function decodeMap(output) {
  const [, classes, height, width] = output.shape;
  const data = output.data;
  const plane = width * height;
  const negative = classes === 1 && data.some((v) => v < 0 || v > 1);
  return {
    width, height, classes,
    at(x, y) {
      const i = y * width + x;
      if (classes === 1) return data[i] > (negative ? 0 : 0.5) ? 1 : 0;
      return bestOf(classes, (c) => data[c * plane + i]);
    },
  };
}

// {boxes} or {map}; null where the outputs are none of these. input: {width, height} of the model.
function decodeOutputs(outputs, input, labelCount) {
  const dense = outputs.filter((o) => o.shape.length === 4 && o.shape[0] === 1);
  const rows = outputs.filter((o) => o.shape.length === 3 && o.shape[0] === 1);
  const corners = outputs.find((o) => o.shape[o.shape.length - 1] === 4 && o.shape.length <= 3);
  if (corners) {
    const count = corners.data.length / 4;
    const logits = rows.find((o) => o !== corners && o.shape[1] === count && o.shape[2] > 1);
    if (logits) return { boxes: decodeDetr(logits, corners, input) };
    const lists = outputs.filter((o) => o !== corners && o.data.length === count);
    const whole = (o) => o.datatype.startsWith("INT") || o.data.every((v) => v === Math.round(v));
    const labels = lists.find((o) => o.datatype.startsWith("INT")) || lists.find(whole);
    const scores = lists.find((o) => o !== labels);
    if (labels && scores) return { boxes: decodeLists(corners, scores, labels, input) };
  }
  if (rows.length >= 1 && rows[0].shape[1] > 4 && rows[0].shape[2] > 4) {
    const prototypes = dense.find((o) => o.shape[1] === 32);
    const boxes = decodeYolo(rows[0], prototypes, input, labelCount);
    if (boxes) return { boxes };
  }
  const map = dense.find((o) => o.shape[1] <= 256 && o.shape[2] > 1 && o.shape[3] > 1);
  return map ? { map: decodeMap(map) } : null;
}

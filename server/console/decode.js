// Masks out of raw outputs, which the server does not decode: YOLO v8 to v12 with masks, in pixels of the
// model's input.

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

// Columns of cx, cy, w, h, scores and the mixture of masks; `at(column, row)`.
function boxesOfColumns(count, classes, at) {
  const boxes = [];
  for (let c = 0; c < count; c++) {
    const best = bestOf(classes, (i) => at(c, 4 + i));
    const score = at(c, 4 + best);
    if (!(score >= SCORE)) continue;
    const [cx, cy, w, h] = [0, 1, 2, 3].map((i) => at(c, i));
    boxes.push({ x: cx - w / 2, y: cy - h / 2, w, h, score, label: best, column: c });
  }
  return suppress(boxes);
}

// YOLO's masks: 32 prototypes, of which each box has its own mixture.
function yoloMasks(boxes, at, rows, prototypes, input) {
  const [, count, height, width] = prototypes.shape;
  const data = prototypes.data;
  for (const box of boxes) {
    const mix = Array.from({ length: count }, (_, i) => at(box.column, rows - count + i));
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

// YOLOv8 and later with masks.
function decodeYolo(output, prototypes, input) {
  const [, rows, count] = output.shape;
  const classes = rows - 4 - prototypes.shape[1];
  if (classes < 1) return null;
  const at = (c, r) => output.data[r * count + c];
  const boxes = boxesOfColumns(count, classes, at);
  yoloMasks(boxes, at, rows, prototypes, input);
  return boxes;
}

// The boxes with their masks; null where the outputs are none. input: {width, height} of the model.
function decodeOutputs(outputs, input) {
  const rows = outputs.find((o) => o.shape.length === 3 && o.shape[0] === 1);
  const prototypes = outputs.find((o) => o.shape.length === 4 && o.shape[0] === 1 && o.shape[1] === 32);
  return rows && prototypes ? decodeYolo(rows, prototypes, input) : null;
}

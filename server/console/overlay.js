// What a detector or a segmenter found, drawn over the picture.

function hue(label) { return (label * 137.508 + 210) % 360; }

// Limbs between COCO's 17 key points.
const LIMBS = [[0, 1], [0, 2], [1, 3], [2, 4], [5, 6], [5, 7], [7, 9], [6, 8], [8, 10], [5, 11], [6, 12], [11, 12], [11, 13],
  [13, 15], [12, 14], [14, 16]];

// Points that the model is not sure of are left out.
function drawPoints(svg, points, unit, colour) {
  const isSure = (p) => p && (p.score === undefined || p.score >= 0.5);
  for (const [a, b] of points.length === 17 ? LIMBS : []) {
    if (isSure(points[a]) && isSure(points[b]))
      svg.append(shape("line", { x1: points[a].x, y1: points[a].y, x2: points[b].x, y2: points[b].y, stroke: colour, "stroke-width": unit * 0.4 }));
  }
  for (const point of points.filter(isSure))
    svg.append(shape("circle", { cx: point.x, cy: point.y, r: unit * 0.6, fill: colour }));
}

// Boxes as the server answers them, in pixels of the picture.
function drawBoxes(frame, boxes, width, height) {
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  frame.append(svg);
  const unit = Math.max(width, height) / 100;
  for (const { box: { x1, y1, x2, y2 }, oriented_box: oriented, keypoints, corners, index, label, score } of boxes) {
    const colour = `hsl(${hue(index)} 85% 45%)`;
    const text = `${label === undefined ? `class ${index}` : label} ${(score * 100).toFixed(0)} %`;
    const x = Math.max(0, x1), y = Math.max(0, y1);
    const line = { fill: "none", stroke: colour, "stroke-width": unit * 0.5 };
    const outline = corners || (oriented && oriented.corners);
    svg.append(outline ? shape("polygon", { points: outline.join(" "), ...line })
      : shape("rect", { x, y, width: Math.max(0, Math.min(width, x2) - x), height: Math.max(0, Math.min(height, y2) - y), ...line }));
    drawPoints(svg, keypoints || [], unit, colour);
    if (corners) continue; // a label would hide the text
    const size = unit * 3.2;
    const under = y < size * 1.3 ? y : y - size * 1.3;
    const back = shape("rect", { y: under, height: size * 1.3, fill: colour });
    const words = shape("text", { y: under + size, "font-size": size, fill: "#fff", "font-family": "sans-serif" });
    words.textContent = text;
    svg.append(back, words);
    // As wide as the text is drawn, and inside the picture.
    const wide = (words.getComputedTextLength() || text.length * size * 0.6) + size * 0.5;
    const left = Math.max(0, Math.min(x, width - wide));
    back.setAttribute("x", left);
    back.setAttribute("width", wide);
    words.setAttribute("x", left + size * 0.25);
  }
}

// Paints where classAt(x, y of the picture) is a class; -1 is left clear.
function drawMask(frame, classAt, width, height) {
  const canvas = element("canvas");
  canvas.setAttribute("aria-hidden", "true");
  frame.append(canvas);
  const shrink = Math.min(1, 640 / Math.max(width, height));
  canvas.width = Math.max(1, Math.round(width * shrink));
  canvas.height = Math.max(1, Math.round(height * shrink));
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(canvas.width, canvas.height);
  const colours = new Map();
  for (let y = 0, i = 0; y < canvas.height; y++) {
    for (let x = 0; x < canvas.width; x++, i += 4) {
      const found = classAt((x + 0.5) / shrink, (y + 0.5) / shrink);
      if (found < 0) continue;
      if (!colours.has(found)) colours.set(found, rgbOf(hue(found)));
      pixels.data.set(colours.get(found), i);
    }
  }
  context.putImageData(pixels, 0, 0);
}

// COCO's compressed run lengths: numbers of pixels outside and inside in turn, column by column.
function readRuns(text) {
  const runs = [];
  for (let at = 0; at < text.length;) {
    let value = 0, shift = 0, bits;
    do {
      bits = text.charCodeAt(at++) - 48;
      value += (bits & 31) * 2 ** shift;
      shift += 5;
    } while (bits & 32);
    if (bits & 16) value -= 2 ** shift;
    runs.push(value + (runs.length > 2 ? runs[runs.length - 2] : 0));
  }
  return runs;
}

// Areas as the server answers them; a background is left clear.
function drawAreas(frame, segments, width, height) {
  const map = new Int16Array(width * height).fill(-1);
  for (const { label, index, rle } of segments) {
    if (/^_*background_*$/i.test(label || "")) continue;
    let at = 0;
    readRuns(rle.counts).forEach((length, i) => {
      if (i % 2) map.fill(index, at, at + length);
      at += length;
    });
  }
  drawMask(frame, (x, y) => map[Math.min(width - 1, Math.floor(x)) * height + Math.min(height - 1, Math.floor(y))], width, height);
}

function rgbOf(h) {
  const part = (n) => {
    const k = (n + h / 30) % 12;
    return Math.round(255 * (0.5 - 0.45 * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return [part(0), part(8), part(4), 150];
}

// A prompt on the picture, which shows a model what to cut out: points and a box, by pointer or by keys.

class Prompt {
  // onChange(): the marks are others.
  constructor(onChange) {
    this.onChange = onChange;
    this.marks = []; // {x, y, label} or {box: [left, top, right, bottom]}, in pixels of the picture
  }

  addTo(query) {
    const points = this.marks.filter((mark) => !mark.box).map(({ x, y, label }) => `${x},${y},${label}`);
    const boxed = this.marks.find((mark) => mark.box);
    if (points.length) query.set("points", points.join(";"));
    if (boxed) query.set("box", boxed.box.join(","));
    query.set("max_detections", "1");
  }

  // Lays the marks over a picture that is loaded.
  show(frame, image, name) {
    this.width = image.naturalWidth;
    this.height = image.naturalHeight;
    this.unit = Math.max(this.width, this.height) / 100;
    this.cursor = { x: Math.round(this.width / 2), y: Math.round(this.height / 2) };
    this.from = this.corner = null; // where a drag, or a box by keys, began
    this.svg = shape("svg", { class: "prompt", viewBox: `0 0 ${this.width} ${this.height}`, tabindex: 0, role: "application",
      "aria-label": `What to cut out of ${name}`, "aria-describedby": "prompt-help" });
    frame.append(this.svg);
    this.svg.addEventListener("click", (event) => event.stopPropagation()); // it would enlarge the picture
    this.svg.addEventListener("pointerdown", (event) => this.press(event));
    this.svg.addEventListener("pointermove", (event) => { if (this.from) this.draw(this.boxTo(this.from, this.at(event))); });
    this.svg.addEventListener("pointerup", (event) => this.release(event));
    this.svg.addEventListener("pointercancel", () => { this.from = null; this.draw(); });
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.draw();
  }

  inside({ x, y }) {
    return { x: Math.round(Math.min(this.width, Math.max(0, x))), y: Math.round(Math.min(this.height, Math.max(0, y))) };
  }

  at(event) {
    return this.inside(new DOMPoint(event.clientX, event.clientY).matrixTransform(this.svg.getScreenCTM().inverse()));
  }

  boxTo(a, b) {
    return [Math.min(a.x, b.x), Math.min(a.y, b.y), Math.max(a.x, b.x), Math.max(a.y, b.y)];
  }

  change(marks) {
    this.marks = marks;
    this.draw();
    this.onChange();
  }

  addPoint(at, isOutside) { this.change([...this.marks, { ...at, label: isOutside ? 0 : 1 }]); }

  addBox(box) {
    if (box[0] < box[2] && box[1] < box[3]) this.change([...this.marks.filter((mark) => !mark.box), { box }]);
  }

  press(event) {
    if (event.button !== 0) return;
    this.svg.setPointerCapture(event.pointerId);
    this.from = this.at(event);
  }

  release(event) {
    if (!this.from) return;
    const from = this.from, to = this.at(event);
    this.from = null;
    this.cursor = to;
    if (Math.hypot(to.x - from.x, to.y - from.y) > 2 * this.unit) this.addBox(this.boxTo(from, to));
    else this.addPoint(from, event.shiftKey || event.altKey);
    this.draw();
  }

  key(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const long = event.shiftKey ? 1 : 2 * this.unit;
    if (step) {
      this.cursor = this.inside({ x: this.cursor.x + step[0] * long, y: this.cursor.y + step[1] * long });
    } else if (event.key === "Enter" || event.key === " ") {
      this.addPoint(this.cursor, event.shiftKey);
    } else if (event.key.toLowerCase() === "b") {
      const corner = this.corner;
      this.corner = corner ? null : this.cursor;
      if (corner) this.addBox(this.boxTo(corner, this.cursor));
    } else if (event.key === "Backspace" && this.marks.length) {
      this.change(this.marks.slice(0, -1));
    } else if (event.key === "Delete" && this.marks.length) {
      this.change([]);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
    this.draw(this.corner && this.boxTo(this.corner, this.cursor));
  }

  // `box`: one that is being drawn.
  draw(box) {
    if (!this.svg) return; // the browser cannot show the picture
    const boxed = this.marks.find((mark) => mark.box);
    const shown = box || (boxed && boxed.box);
    const { x, y } = this.cursor, arm = 2 * this.unit;
    this.svg.replaceChildren(
      ...(shown ? [shape("rect", { x: shown[0], y: shown[1], width: shown[2] - shown[0], height: shown[3] - shown[1] })] : []),
      ...this.marks.filter((mark) => !mark.box).map((mark) =>
        shape("circle", { cx: mark.x, cy: mark.y, r: this.unit, class: mark.label ? "in" : "out" })),
      shape("path", { class: "cursor", d: `M${x - arm} ${y}h${2 * arm}M${x} ${y - arm}v${2 * arm}` }));
  }
}

// The pad for a digit: pointer, or keys.

class Pad {
  // onDrawn(): something was drawn, and the pen has been up for a moment.
  constructor(canvas, onDrawn) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.onDrawn = onDrawn;
    this.cursor = { x: 140, y: 60 };
    this.keysDown = false;
    this.pen = element("span", "pen");
    canvas.after(this.pen);
    this.place();
    this.clear();
    canvas.addEventListener("pointerdown", (event) => this.begin(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(name, () => this.end());
    }
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => this.lift());
  }

  clear() {
    this.context.fillStyle = "#fff";
    this.context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    this.empty = true;
    this.last = null;
    clearTimeout(this.timer);
  }

  // Where keys will draw.
  place() {
    this.pen.style.left = `${(this.cursor.x / this.canvas.width) * 100}%`;
    this.pen.style.top = `${(this.cursor.y / this.canvas.height) * 100}%`;
    this.pen.classList.toggle("down", this.keysDown);
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    return {
      x: ((event.clientX - box.left) / box.width) * this.canvas.width,
      y: ((event.clientY - box.top) / box.height) * this.canvas.height,
    };
  }

  stroke(from, to) {
    const c = this.context;
    c.strokeStyle = "#111";
    c.lineWidth = 22;
    c.lineCap = c.lineJoin = "round";
    c.beginPath();
    c.moveTo(from.x, from.y);
    c.lineTo(to.x + 0.01, to.y);
    c.stroke();
    this.empty = false;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => { if (!this.last && !this.keysDown) this.onDrawn(); }, 400);
  }

  begin(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.last = this.at(event);
    this.stroke(this.last, this.last);
  }

  move(event) {
    if (!this.last) return;
    for (const part of event.getCoalescedEvents ? [...event.getCoalescedEvents(), event] : [event]) {
      const next = this.at(part);
      this.stroke(this.last, next);
      this.last = next;
    }
  }

  end() {
    if (!this.last) return;
    this.last = null;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => { if (!this.last) this.onDrawn(); }, 400);
  }

  lift() {
    if (!this.keysDown) return;
    this.keysDown = false;
    if (!this.empty) this.onDrawn();
  }

  key(event) {
    const steps = { ArrowLeft: [-10, 0], ArrowRight: [10, 0], ArrowUp: [0, -10], ArrowDown: [0, 10] };
    const step = steps[event.key];
    if (step) {
      const next = {
        x: Math.min(260, Math.max(20, this.cursor.x + step[0])),
        y: Math.min(260, Math.max(20, this.cursor.y + step[1])),
      };
      if (this.keysDown) this.stroke(this.cursor, next);
      this.cursor = next;
    } else if (event.key === " ") {
      if (this.keysDown) {
        this.lift();
      } else {
        this.keysDown = true;
        this.stroke(this.cursor, this.cursor);
      }
    } else if (event.key === "Delete" || event.key === "Backspace") {
      this.keysDown = false;
      this.clear();
    } else {
      return;
    }
    this.place();
    event.preventDefault();
  }

  // The drawing as a PNG file.
  file() {
    return new Promise((resolve) => {
      this.canvas.toBlob((blob) => resolve(new File([blob], "digit.png", { type: "image/png" })), "image/png");
    });
  }
}

// Small line charts of the last minutes, drawn as SVG.

const SVG = "http://www.w3.org/2000/svg";
const POINTS = 120;
const COLOURS = 8;

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function shape(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// 0.0123 → "0.012", 12.345 → "12.3", 12345 → "12,345".
function short(value) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  if (value !== 0 && Math.abs(value) < 0.1) return value.toPrecision(2);
  return String(Number(value.toFixed(value < 10 ? 2 : 1)));
}

function niceTop(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 10].map((m) => m * power).find((top) => top >= value);
}

class Chart {
  constructor(host, title, unit) {
    this.unit = unit;
    this.title = title;
    this.lines = new Map();
    this.count = 0;
    const figure = element("figure", "chart");
    figure.append(element("h3", "", `${title}, ${unit}`));
    this.plot = element("div", "plot");
    this.svg = shape("svg", { viewBox: `0 0 ${POINTS - 1} 100`, preserveAspectRatio: "none", role: "img" });
    this.svg.setAttribute("aria-label", `${title}, ${unit}: nothing yet`);
    this.ticks = [0, 0.5, 1].map((at) => {
      this.svg.append(shape("line", { class: "grid", x1: 0, x2: POINTS - 1, y1: 100 - at * 100, y2: 100 - at * 100 }));
      const tick = element("span", "tick");
      tick.style.top = `${100 - at * 100}%`;
      this.plot.append(tick);
      return [at, tick];
    });
    this.plot.prepend(this.svg);
    this.legend = element("ul", "legend");
    const ago = element("div", "ago");
    ago.append(element("span", "", "2 min ago"), element("span", "", "now"));
    figure.append(this.plot, ago, this.legend);
    host.append(figure);
  }

  // values: {name: number or null}; a name seen for the first time becomes a line.
  add(values) {
    for (const name of Object.keys(values)) {
      if (this.lines.has(name) || this.lines.size === COLOURS) continue;
      const colour = this.lines.size + 1;
      const path = shape("path", { class: `l${colour}` });
      const item = element("li");
      const now = element("b");
      item.append(element("i", `c${colour}`), `${name} `, now);
      this.svg.append(path);
      this.legend.append(item);
      this.lines.set(name, { path, now, values: Array(this.count).fill(null) });
    }
    this.count = Math.min(this.count + 1, POINTS);
    for (const [name, line] of this.lines) {
      line.values.push(values[name] === undefined ? null : values[name]);
      if (line.values.length > POINTS) line.values.shift();
    }
    this.draw();
  }

  draw() {
    const top = niceTop(Math.max(0, ...[...this.lines.values()].flatMap((l) => l.values.filter((v) => v !== null))));
    const said = [];
    for (const [name, line] of this.lines) {
      let path = "";
      let down = false;
      line.values.forEach((value, i) => {
        if (value === null) { down = false; return; }
        const x = POINTS - line.values.length + i;
        const y = (100 - (value / top) * 100).toFixed(2);
        // A point without neighbours is a short stroke.
        path += down ? `L${x} ${y}` : `M${x - 0.5} ${y}L${x} ${y}`;
        down = true;
      });
      line.path.setAttribute("d", path);
      const last = line.values[line.values.length - 1];
      line.now.textContent = short(last);
      said.push(`${name} ${short(last)}`);
    }
    for (const [at, tick] of this.ticks) tick.textContent = at ? short(top * at) : "";
    this.svg.setAttribute("aria-label", `${this.title}, ${this.unit}, now: ${said.join(", ")}`);
  }
}

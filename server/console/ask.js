// Asking: a request is made of files, sent, and its answer shown.

// Tasks whose answers are boxes.
const BOX_TASKS = ["detection", "pose", "oriented-boxes", "instance-segmentation", "text-detection"];

// Tasks whose answers are a list of labels.
const LABEL_TASKS = ["classification", "zero-shot"];

// Thresholds that a slider sets, where the model has them.
const THRESHOLDS = ["confidence", "iou"];

const key = { text: sessionStorage.getItem("lensd-key") || "" };

function byId(id) { return document.getElementById(id); }

// fetch() with the key; asks for one when the server wants it. Addresses are relative to the page, so
// that a proxy may serve it under a path.
async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (key.text) headers.Authorization = `Bearer ${key.text}`;
  const answer = await fetch(path, { ...options, headers, cache: "no-store" });
  if (answer.status === 401) byId("key-form").hidden = false;
  return answer;
}

function shellQuote(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

function pictureButton(text, what, run) {
  const button = element("button", "quiet", text);
  button.type = "button";
  button.setAttribute("aria-label", `${text} ${what}`);
  button.addEventListener("click", run);
  return button;
}

// Shows a picture as large as the window, or as it was; Escape and the arrow keys: listenForKeys().
function enlarge(figure) {
  const was = figure.classList.contains("large");
  document.querySelectorAll(".picture.large").forEach((other) => {
    other.classList.remove("large");
    other.querySelector("button").textContent = "Enlarge";
  });
  if (was) return;
  figure.classList.add("large");
  figure.querySelector("button").textContent = "Close";
  figure.querySelector("button").focus();
}

function listenForKeys() {
  document.addEventListener("keydown", (event) => {
    const figures = [...document.querySelectorAll(".picture")];
    const at = figures.findIndex((figure) => figure.classList.contains("large"));
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (at < 0) return;
    if (event.key === "Escape") enlarge(figures[at]);
    else if (step && figures[at + step]) enlarge(figures[at + step]);
  });
}

// A box's text has its own score; what else a pipeline's next stage says is added to the label.
function nameAndScore({ label, index, score, probability, crop }) {
  if (crop && crop.text !== undefined) return [crop.text, crop.score];
  const name = label === undefined ? `class ${index}` : label;
  const best = crop && crop.predictions && crop.predictions[0];
  return [best ? `${name}: ${nameAndScore(best)[0]}` : name, score === undefined ? probability : score];
}

// The answer as programs get it; long texts, such as pictures, are cut.
function rawAnswer(body) {
  const details = element("details", "raw");
  const pre = element("pre");
  pre.tabIndex = 0;
  pre.textContent = JSON.stringify(body, (_, value) =>
    (typeof value === "string" && value.length > 500 ? `${value.slice(0, 80)}… (${value.length} characters)` : value), 2);
  details.append(element("summary", "", "JSON"), pre);
  return details;
}

class Asker {
  constructor() {
    this.input = byId("photo");
    this.answer = byId("answer");
    this.number = 0;
    this.urls = [];
    byId("file").addEventListener("change", (event) => {
      this.ask([...event.target.files]);
      event.target.value = "";
    });
    byId("top-k").addEventListener("change", () => { if (this.files) this.ask(this.files); });
    for (const name of THRESHOLDS) {
      byId(name).addEventListener("input", () => { byId(`${name}-text`).textContent = byId(name).value; });
      byId(name).addEventListener("change", () => {
        this.thresholds[name] = byId(name).value;
        if (this.files) this.ask(this.files);
      });
    }
    byId("words").addEventListener("change", () => { if (this.files) this.ask(this.files); });
    this.thresholds = {}; // those that a slider was moved to
    byId("model").addEventListener("change", () => {
      this.thresholds = {};
      this.showParameters();
      if (this.files) this.ask(this.files);
    });
    this.prompt = new Prompt(() => this.ask(this.files));
    byId("copy").addEventListener("click", () => this.copy());
    this.listenForDrops();
    listenForKeys();
    document.addEventListener("paste", (event) => {
      const files = [...(event.clipboardData ? event.clipboardData.files : [])];
      if (files.length) this.takePhotos(files);
    });
  }

  listenForDrops() {
    const veil = byId("veil");
    const hasFiles = (event) => [...event.dataTransfer.types].includes("Files");
    document.addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      veil.hidden = false;
    });
    document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) veil.hidden = true; });
    document.addEventListener("drop", (event) => {
      veil.hidden = true;
      if (!hasFiles(event)) return;
      event.preventDefault();
      this.takePhotos([...event.dataTransfer.files]);
    });
  }

  takePhotos(files) {
    byId("tab-try").click();
    const photo = document.querySelector('input[name="how"][value="photo"]');
    if (!photo.checked) {
      photo.checked = true;
      photo.dispatchEvent(new Event("change", { bubbles: true }));
    }
    this.ask(files);
  }

  address(drawn) {
    const query = new URLSearchParams();
    const model = drawn ? "digits" : byId("model").value;
    if (model && this.several) query.set("model", model);
    if (this.hasLabels(drawn)) query.set("top_k", String(Math.min(20, Math.max(1, Number(byId("top-k").value) || 5))));
    const words = byId("words").value.trim();
    if (words && this.takesWords(drawn)) query.set("labels", words);
    for (const [name, value] of Object.entries(drawn ? {} : this.thresholds)) query.set(name, value);
    if (this.takesPoints(drawn)) this.prompt.addTo(query);
    return `predict?${query}`;
  }

  // The model that is asked, as /console.json describes it; null: not known.
  model(drawn) {
    const name = drawn ? "digits" : byId("model").value;
    return (this.models || []).find((model) => model.name === name) || null;
  }

  // Whether words can be its labels: its half of texts is served, too.
  takesWords(drawn) {
    const model = this.model(drawn);
    return !drawn && model !== null && this.models.some((other) => other.name === `${model.name}.text`);
  }

  hasLabels(drawn) {
    const model = this.model(drawn);
    return drawn || (model !== null && LABEL_TASKS.includes(model.task));
  }

  // Whether marks in the photo show it what to cut out.
  takesPoints(drawn) {
    const model = this.model(drawn);
    return !drawn && model !== null && model.photos && model.task === "mask-generation";
  }

  // Shows the parameters that the chosen model has, with its own thresholds until a slider is moved.
  showParameters() {
    const model = this.model(false) || {};
    byId("words-field").hidden = !this.takesWords(false);
    byId("top-k-field").hidden = model.task !== undefined && !this.hasLabels(false);
    for (const name of THRESHOLDS) {
      byId(`${name}-field`).hidden = model[name] === undefined;
      if (model[name] === undefined || this.thresholds[name] !== undefined) continue;
      byId(name).value = String(model[name]);
      byId(`${name}-text`).textContent = byId(name).value;
    }
  }

  async ask(files, drawn = false) {
    if (!files.length) return;
    const marks = this.takesPoints(drawn);
    if (marks && files.length > 1) files = [files[0]];
    if (this.files !== files) this.prompt.marks = [];
    this.files = drawn ? null : files;
    this.drawn = drawn;
    const number = ++this.number;
    const path = this.address(drawn);
    const figures = drawn ? [] : this.showPictures(files, marks);
    if (marks && !this.prompt.marks.length) {
      byId("curl").hidden = true;
      this.answer.setAttribute("aria-busy", "false");
      this.answer.replaceChildren(element("p", "dim empty", "The mask appears here once something is marked in the photo."));
      return;
    }
    this.showCurl(path, files);
    this.answer.setAttribute("aria-busy", "true");
    const begin = performance.now();
    let answer, body;
    try {
      answer = await call(path, this.request(files));
      body = await answer.json();
    } catch (error) {
      answer = null;
    }
    if (number !== this.number) return; // a newer question is under way
    this.answer.setAttribute("aria-busy", "false");
    if (!answer) {
      this.showError({ error: "The server does not answer, or not with JSON. Is it still running?", code: "no_answer" });
    } else if (!answer.ok) {
      this.showError(body);
      this.again = answer.status === 401 ? () => this.ask(files, drawn) : null;
    } else {
      this.showAnswer(body, files, performance.now() - begin, figures);
    }
  }

  bars(lines) {
    const list = element("ol", "bars");
    for (const [name, share] of lines) {
      const item = element("li");
      const track = element("div", "track");
      const bar = element("i");
      bar.style.width = `${(share * 100).toFixed(2)}%`;
      track.append(bar);
      item.append(element("span", "label", name), element("span", "value", `${(share * 100).toFixed(share < 0.001 ? 3 : 1)} %`), track);
      list.append(item);
    }
    return list;
  }

  request(files) {
    if (files.length === 1) return { method: "POST", body: files[0], headers: { "Content-Type": files[0].type || "application/octet-stream" } };
    const form = new FormData();
    for (const file of files) form.append("image", file, file.name);
    return { method: "POST", body: form };
  }

  // `marks`: the model wants marks in the photo, which stay while it is the same.
  showPictures(files, marks) {
    byId("prompt-help").hidden = !marks;
    document.querySelectorAll("#pictures canvas").forEach((canvas) => canvas.remove());
    if (marks && this.shown === files) return [byId("pictures").firstChild];
    this.shown = marks ? files : null;
    this.urls.forEach((url) => URL.revokeObjectURL(url));
    this.urls = files.map((file) => URL.createObjectURL(file));
    const list = element("div", files.length > 1 ? "pictures many" : "pictures");
    list.id = "pictures";
    const figures = files.map((file, i) => {
      const figure = element("figure", "picture");
      const image = element("img");
      image.alt = `The photo that was sent: ${file.name}`;
      image.src = this.urls[i];
      image.addEventListener("error", () => image.remove());
      if (marks) image.addEventListener("load", () => this.prompt.show(frame, image, file.name), { once: true });
      const frame = element("div", "frame");
      frame.append(image);
      const caption = element("figcaption");
      caption.append(element("span", "", file.name), pictureButton("Enlarge", file.name, () => enlarge(figure)),
        pictureButton("Save", `${file.name} with what was found`, () => this.save(file)));
      if (marks) caption.append(pictureButton("Clear", `the marks in ${file.name}`, () => this.prompt.change([])));
      frame.addEventListener("click", () => enlarge(figure));
      figure.append(frame, caption);
      list.append(figure);
      return figure;
    });
    const old = byId("pictures");
    if (old) old.replaceWith(list);
    else this.input.prepend(list);
    byId("drop").classList.add("filled");
    return figures;
  }

  // Downloads the photo with what was found drawn on it.
  async save(file) {
    const answer = await call(`${this.address(false)}&format=image`, this.request([file])).catch(() => null);
    if (!answer || !answer.ok) {
      this.showError(answer ? await answer.json() : {});
      return;
    }
    const link = element("a");
    link.href = URL.createObjectURL(await answer.blob());
    link.download = `${file.name.replace(/\.[^.]*$/, "")}-lensd.${(answer.headers.get("Content-Type") || "").split("/").pop()}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  }

  showCurl(path, files) {
    const url = new URL(path, location.href).href;
    const parts = ["curl"];
    if (key.text) parts.push('-H "Authorization: Bearer $LENSD_KEY"');
    if (files.length === 1) parts.push(`--data-binary ${shellQuote("@" + files[0].name)}`);
    else files.forEach((file) => parts.push(`-F ${shellQuote("image=@" + file.name)}`));
    parts.push(shellQuote(url));
    byId("curl-text").textContent = parts.join(" ");
    byId("curl").hidden = false;
  }

  async copy() {
    const text = byId("curl-text").textContent;
    const button = byId("copy");
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Without a secure origin there is no clipboard: the text is selected instead.
      const range = document.createRange();
      range.selectNodeContents(byId("curl-text"));
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }

  showError(body) {
    const box = element("div", "error");
    box.setAttribute("role", "alert");
    box.append(element("strong", "", "That did not work. "),
      document.createTextNode(body.error || "The server did not say why."));
    this.answer.replaceChildren(box, rawAnswer(body));
  }

  showAnswer(body, files, milliseconds, figures) {
    const results = body.results || [body];
    const parts = results.map((result, i) => this.result(result, results.length > 1 ? files[i].name : null, figures[i]));
    const timing = results.length === 1 ? { ...results[0].timing_ms, ...body.timing_ms } : body.timing_ms;
    parts.push(this.timing(timing, milliseconds, results[0].batch));
    const where = `${body.model} on ${body.device || results[0].device || "?"}`;
    const size = results.length === 1 && results[0].image ? `, ${results[0].image.width} × ${results[0].image.height} pixels` : "";
    parts.push(element("p", "dim", where + size));
    this.answer.replaceChildren(...parts, rawAnswer(body));
  }

  result(result, name, figure) {
    const box = element("div", "result");
    if (name) box.append(element("h3", "", name));
    if (result.error) {
      box.append(element("div", "error", result.error));
      return box;
    }
    const { width, height } = result.image;
    const predictions = result.predictions || (result.segments || []).map((s) => ({ ...s, score: s.area / (width * height) }));
    if (result.text !== undefined) {
      // A line has a score; a page has its lines.
      const score = result.score === undefined ? "" : `, ${(result.score * 100).toFixed(1)} %`;
      box.append(element("p", "found", score ? `“${result.text}”${score}` : result.text));
    }
    if (result.anomaly) {
      const { score, anomalous } = result.anomaly;
      box.append(element("p", "found", `${anomalous ? "Anomalous" : "Normal"}, score ${score.toFixed(3)}`));
      const map = result.map && figure && figure.querySelector("img");
      if (map) map.src = `data:image/png;base64,${result.map.png}`;
    } else if (result.depth) {
      box.append(element("p", "found", `Depths from ${short(result.depth.min)} to ${short(result.depth.max)}`));
      const map = figure && figure.querySelector("img");
      if (map) map.src = `data:image/png;base64,${result.depth.png}`;
    } else if (result.embedding) {
      const some = result.embedding.slice(0, 6).map(short).join(", ");
      box.append(element("p", "found", `A vector of ${result.embedding.length} numbers: ${some}, …`));
    } else if (this.takesPoints(this.drawn)) {
      const found = predictions.map((mask) => ({ ...mask, label: "mask" }));
      box.append(element("h3", "found", found.length ? `The mask has ${found[0].area} of ${width * height} pixels` : "No mask"));
      if (figure) drawAreas(figure.querySelector(".frame"), found, width, height);
      box.append(this.bars(found.map(nameAndScore)));
      return box;
    } else if (BOX_TASKS.includes((this.model(this.drawn) || {}).task)) {
      box.append(element("h3", "found", `${predictions.length} ${predictions.length === 1 ? "box" : "boxes"} found`));
      if (figure && predictions.some((p) => p.rle)) drawAreas(figure.querySelector(".frame"), predictions, width, height);
      if (figure) drawBoxes(figure.querySelector(".frame"), predictions, width, height);
    } else if (result.segments) {
      box.append(element("h3", "found", `${predictions.length} ${predictions.length === 1 ? "kind" : "kinds"} of area found`));
      if (figure) drawAreas(figure.querySelector(".frame"), predictions, width, height);
    }
    box.append(this.bars(predictions.slice(0, 20).map(nameAndScore)));
    return box;
  }

  // Where the time went: the server's phases, then the way there and back.
  timing(timing, milliseconds, batch) {
    const box = element("div", "timing");
    const phases = Object.entries(timing || {}).filter(([name]) => name !== "total");
    const known = phases.reduce((sum, [, ms]) => sum + ms, 0);
    const whole = timing && timing.total !== undefined ? timing.total : known;
    if (phases.length && whole > known) phases.push(["rest", whole - known]);
    const split = element("div", "split");
    const legend = element("ul", "legend");
    phases.forEach(([name, ms], i) => {
      const colour = `c${(i % COLOURS) + 1}`;
      const part = element("i", colour);
      part.style.flexGrow = String(Math.max(ms, 0));
      split.append(part);
      const item = element("li");
      item.append(element("i", colour), `${name} `, element("b", "", `${short(ms)} ms`));
      legend.append(item);
    });
    split.setAttribute("role", "img");
    split.setAttribute("aria-label", phases.map(([name, ms]) => `${name} ${short(ms)} milliseconds`).join(", "));
    let text = `${short(whole)} ms in the server, ${short(milliseconds)} ms including the network.`;
    if (batch > 1) text += ` It ran in a batch of ${batch}.`;
    if (phases.length) box.append(split, legend);
    box.append(element("p", "dim", text));
    return box;
  }
}

// The page: what is served, the live view, the devices; puts the other files' parts together.

const PERIOD = 1000; // ms between two readings of /metrics
const WINDOW = 5; // readings that a rate or percentile looks back
const LATENCY = "lensd_http_request_duration_seconds";
const PHASES = "lensd_phase_seconds";
const PHASE_ORDER = ["read", "decode", "preprocess", "queue", "copy_in", "forward", "copy_out", "write"];

function bytesText(bytes) {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) { bytes /= 1000; unit++; }
  return `${unit ? bytes.toFixed(1) : bytes} ${units[unit]}`;
}

// ---- live ----

class Live {
  constructor() {
    this.readings = [];
    const host = byId("charts");
    this.charts = {
      rate: new Chart(host, "Throughput", "images/s"),
      latency: new Chart(host, "Latency of requests", "ms"),
      phases: new Chart(host, "Mean time of an image by phase", "ms"),
      batch: new Chart(host, "Mean batch size", "images"),
      reasons: new Chart(host, "Why batches closed", "batches/s"),
      queue: new Chart(host, "Queued and in flight", "images"),
    };
    byId("pause").addEventListener("click", (event) => {
      this.paused = !this.paused;
      event.target.setAttribute("aria-pressed", String(this.paused));
      event.target.textContent = this.paused ? "Go on" : "Pause";
    });
    this.figures = new Map();
  }

  async read() {
    if (this.paused || document.hidden) return;
    let text;
    try {
      const answer = await call("metrics");
      if (!answer.ok) return;
      text = await answer.text();
      setState(null);
    } catch {
      setState("gone");
      return;
    }
    byId("live").hidden = false;
    this.readings.push({ at: performance.now(), families: parseMetrics(text) });
    if (this.readings.length > WINDOW + 1) this.readings.shift();
    if (this.readings.length > 1) this.show();
  }

  show() {
    const now = this.readings[this.readings.length - 1];
    const then = this.readings[0];
    const a = then.families, b = now.families;
    const seconds = (now.at - then.at) / 1000;
    const rate = (name, labels) => Math.max(0, total(b, name, labels) - total(a, name, labels)) / seconds;
    const latency = histogramBetween(a, b, LATENCY);
    const ms = (share) => { const q = quantile(latency, share); return q === null ? null : q * 1000; };
    const answered = rate("lensd_images_total", { result: "ok" });
    const requests = latency.count / seconds;
    const refused = rate("lensd_refused_total");
    const queue = total(b, "lensd_queue_images");
    const flight = total(b, "lensd_in_flight_images");
    const p50 = ms(0.5), p90 = ms(0.9), p99 = ms(0.99);

    this.figure("Requests/s", short(requests));
    this.figure("Images/s", short(answered));
    this.figure("p50", p50 === null ? "–" : `${short(p50)} ms`);
    this.figure("p99", p99 === null ? "–" : `${short(p99)} ms`);
    this.figure("Queued", short(queue));
    this.figure("In flight", short(flight));
    this.figure("Refused/s", short(refused));
    this.figure("Connections", short(total(b, "lensd_http_connections")));

    const models = labelValues(b, "lensd_images_total", "model");
    const perModel = models.length > 1 && models.length < 5
      ? Object.fromEntries(models.map((m) => [m, rate("lensd_images_total", { result: "ok", model: m })]))
      : { answered };
    this.charts.rate.add({ ...perModel, refused });
    this.charts.latency.add({ p50, p90, p99 });
    const phases = {};
    const known = labelValues(b, PHASES + "_count", "phase");
    const ordered = PHASE_ORDER.filter((p) => known.includes(p)).concat(known.filter((p) => !PHASE_ORDER.includes(p)));
    for (const phase of ordered.slice(0, COLOURS)) {
      const h = histogramBetween(a, b, PHASES, { phase });
      phases[phase.replaceAll("_", " ")] = h.count > 0 ? (h.sum / h.count) * 1000 : null;
    }
    this.charts.phases.add(phases);
    const batches = {};
    for (const device of labelValues(b, "lensd_batch_size_count", "device").slice(0, COLOURS)) {
      const h = histogramBetween(a, b, "lensd_batch_size", { device });
      batches[device] = h.count > 0 ? h.sum / h.count : null;
    }
    this.charts.batch.add(batches);
    const reasons = {};
    for (const reason of labelValues(b, "lensd_batches_closed_total", "reason").slice(0, COLOURS)) {
      reasons[reason.replaceAll("_", " ")] = rate("lensd_batches_closed_total", { reason });
    }
    this.charts.reasons.add(reasons);
    this.charts.queue.add({ queued: queue, "in flight": flight });
    byId("live-state").textContent = this.paused ? "" : `over the last ${Math.round(seconds)} s`;
  }

  figure(name, text) {
    let value = this.figures.get(name);
    if (!value) {
      const box = element("div");
      value = element("dd");
      box.append(element("dt", "", name), value);
      byId("figures").append(box);
      this.figures.set(name, value);
    }
    if (value.textContent !== text) value.textContent = text;
  }
}

// ---- state, models, devices ----

// null: as the server last said.
function setState(word) {
  const state = byId("state");
  const shown = word || state.dataset.said || state.dataset.state;
  if (!word && state.dataset.state === "gone") state.dataset.state = shown;
  if (word && word !== "gone") state.dataset.said = word;
  if (state.dataset.state !== shown || state.textContent !== (shown === "gone" ? "not reachable" : shown)) {
    state.dataset.state = shown;
    state.textContent = shown === "gone" ? "not reachable" : shown;
  }
}

// What the page has to know of the models to draw what they find.
async function readModels(asker) {
  try {
    const answer = await call("console.json");
    if (answer.ok) ({ models: asker.models, zmq: asker.zmq } = await answer.json());
    showLabels(asker.models || []);
    asker.showParameters();
    listDoors(asker);
  } catch {
    setState("gone");
  }
}

// The view of the API has a choice of models, too.
function listDoors(asker) {
  if (!asker.models) return; // it needs a key
  const select = byId("doors-model"), names = asker.models.map((model) => model.name);
  if (names.join("\n") !== [...select.options].map((o) => o.value).join("\n")) {
    const chosen = select.value;
    select.replaceChildren(...names.map((name) => new Option(name, name)));
    select.value = names.includes(chosen) ? chosen : byId("model").value;
  }
  byId("doors-card").hidden = !names.length;
  showDoors(byId("doors"), asker.models.find((model) => model.name === select.value), asker.models, asker.zmq);
}

// A line for each model with its task, which opens its labels.
function showLabels(models) {
  const host = byId("labels");
  const text = JSON.stringify(models.map((model) => [model.name, model.task]));
  if (host.dataset.shown === text) return;
  host.dataset.shown = text;
  host.replaceChildren(...models.map((model) => {
    const details = element("details");
    const list = element("p", "dim", "…");
    details.append(element("summary", "", `${model.name}: ${(model.task || "tensors").replaceAll("-", " ")}; labels`), list);
    details.addEventListener("toggle", async () => {
      if (!details.open) return;
      const answer = await call(`models/${encodeURIComponent(model.name)}/labels`).catch(() => null);
      const body = answer ? await answer.json() : {};
      list.textContent = answer && answer.ok ? body.labels.join(", ") || "It has no labels." : body.error || "No answer.";
    });
    return details;
  }));
}

// The table is the server's: it is read again when a model comes, goes or changes.
async function showModels(models) {
  const table = document.querySelector("#view-models tbody");
  const text = JSON.stringify(models.map(({ name, version, state, precision }) => [name, version, state, precision]));
  if (table.dataset.shown === text) return;
  const page = new DOMParser().parseFromString(await (await call("./")).text(), "text/html");
  const read = page.querySelector("#view-models tbody");
  if (read) table.replaceChildren(...read.rows);
  table.dataset.shown = text;
}

async function readHealth(asker) {
  let health;
  try {
    health = await (await call("health")).json();
  } catch {
    setState("gone");
    return;
  }
  setState(health.status);
  await showModels(health.models || []).catch(() => {});
  const ready = (health.models || []).filter((model) => model.state === "ready");
  const names = [...new Set(ready.map((model) => model.name))];
  const standard = ready.find((model) => model.default);
  const select = byId("model");
  if (names.join("\n") !== [...select.options].map((o) => o.value).join("\n")) {
    const chosen = select.value;
    select.replaceChildren(...names.map((name) => new Option(name, name)));
    select.value = names.includes(chosen) ? chosen : standard ? standard.name : names[0] || "";
  }
  asker.several = names.length > 1 || !standard;
  await readModels(asker);
  byId("model-field").hidden = !asker.several;
  byId("how").hidden = !names.includes("digits");
}

function batchTable(model) {
  const table = element("table");
  const head = element("tr");
  head.append(element("th", "", "Batch"), element("th", "number", "ms"), element("th", "number", "images/s"));
  table.createTHead().append(head);
  const body = table.createTBody();
  for (const batch of model.batches || []) {
    const row = body.insertRow();
    row.append(element("td", "", String(batch.size)), element("td", "number", batch.milliseconds ? short(batch.milliseconds) : "–"),
      element("td", "number", batch.milliseconds ? short((batch.size * 1000) / batch.milliseconds) : "–"));
  }
  return table;
}

function deviceBox(device) {
  const box = element("div", "device");
  const title = element("h3", "", device.id);
  title.append(element("span", "dim", device.name));
  box.append(title);
  if (!device.usable) {
    box.append(element("p", "dim", `Not usable: ${device.reason}`));
    return box;
  }
  const memory = device.memory;
  if (memory && memory.total_bytes) {
    const bar = element("div", "memory");
    const own = element("i"), others = element("i");
    own.style.width = `${(memory.used_by_lensd_bytes / memory.total_bytes) * 100}%`;
    others.style.width = `${Math.max(0, (memory.total_bytes - memory.free_bytes - memory.used_by_lensd_bytes) / memory.total_bytes) * 100}%`;
    bar.append(own, others);
    box.append(bar, element("p", "dim", `${bytesText(memory.used_by_lensd_bytes)} used by lensd, `
      + `${bytesText(memory.free_bytes)} of ${bytesText(memory.total_bytes)} free`
      + (device.isa ? `; ${device.isa}` : "") + (device.cores ? `; ${device.cores} cores` : "")));
  }
  for (const model of device.models || []) {
    const details = element("details");
    const batches = model.batches || [];
    const best = batches.reduce((most, b) => Math.max(most, b.milliseconds ? (b.size * 1000) / b.milliseconds : 0), 0);
    details.append(element("summary", "", `${model.name}, version ${model.version}, ${model.precision}`
      + (best ? `: up to ${short(best)} images/s` : "")));
    if (model.note) details.append(element("p", "dim", model.note));
    details.append(batchTable(model));
    box.append(details);
  }
  return box;
}

async function readDevices() {
  if (document.hidden) return;
  try {
    const answer = await call("devices");
    if (!answer.ok) return;
    const devices = (await answer.json()).devices;
    // Opened details stay open, and what did not change is left alone.
    const text = JSON.stringify(devices.map(({ memory, ...rest }) => rest));
    const host = byId("devices");
    if (host.dataset.shown === text) return;
    host.dataset.shown = text;
    const open = [...host.querySelectorAll("details")].map((details) => details.open);
    host.replaceChildren(...devices.map(deviceBox));
    host.querySelectorAll("details").forEach((details, i) => { details.open = open[i] || false; });
    byId("devices-card").hidden = false;
  } catch {
    setState("gone");
  }
}

// ---- the rest of the page ----

function themeButton() {
  const button = byId("theme");
  const root = document.documentElement;
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches);
  const label = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  root.dataset.theme = localStorage.getItem("lensd-theme") || "";
  if (!root.dataset.theme) delete root.dataset.theme;
  button.hidden = false;
  label();
  systemDark.addEventListener("change", label);
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    localStorage.setItem("lensd-theme", root.dataset.theme);
    label();
  });
}

// One view at a time; the address has its name, so that it can be linked to.
function startTabs() {
  const tabs = [...document.querySelectorAll('#tabs [role="tab"]')];
  const show = (name, focus) => {
    const chosen = tabs.find((tab) => tab.id === `tab-${name}`) || tabs[0];
    for (const tab of tabs) {
      tab.setAttribute("aria-selected", String(tab === chosen));
      tab.tabIndex = tab === chosen ? 0 : -1;
      byId(tab.getAttribute("aria-controls")).hidden = tab !== chosen;
    }
    if (focus) chosen.focus();
    return chosen.id.slice("tab-".length);
  };
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => history.replaceState(null, "", `#${show(tab.id.slice("tab-".length), true)}`));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) tabs[(i + step + tabs.length) % tabs.length].click();
    });
  });
  addEventListener("hashchange", () => show(location.hash.slice(1), false));
  show(location.hash.slice(1), false);
  byId("tabs").hidden = false;
}

function start() {
  themeButton();
  startTabs();
  const asker = new Asker();
  const pad = new Pad(byId("pad"), async () => asker.ask([await pad.file()], true));
  byId("clear").addEventListener("click", () => pad.clear());
  byId("doors-model").addEventListener("change", () => listDoors(asker));
  for (const radio of document.querySelectorAll('input[name="how"]')) {
    radio.addEventListener("change", () => {
      const drawing = document.querySelector('input[name="how"]:checked').value === "draw";
      byId("draw").hidden = !drawing;
      byId("photo").hidden = drawing;
    });
  }
  const live = new Live();
  const readAll = () => { readHealth(asker); readDevices(); };
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    key.text = byId("key").value.trim();
    sessionStorage.setItem("lensd-key", key.text);
    byId("key-form").hidden = true;
    readAll();
    if (asker.again) asker.again();
  });
  readAll();
  live.read();
  setInterval(() => live.read(), PERIOD);
  setInterval(readAll, 5 * PERIOD);
}

start();

// How the clients of other servers call the chosen model: a line for each API that takes it.

const MASK_TASKS = ["segmentation", "instance-segmentation"];
const NSFW = [["normal", "nsfw"], ["drawings", "hentai", "neutral", "porn", "sexy"]];

function curlLine(options, path) {
  const auth = key.text ? ' -H "Authorization: Bearer $LENSD_KEY"' : "";
  return `curl${auth} ${options} ${shellQuote(new URL(path, location.href).href)}`;
}

// The photo as base64 inside JSON: a pipe has room for any photo, an argument does not.
function jsonLine(before, after, path, options = "") {
  return `(printf %s ${shellQuote(before)}; base64 < photo.jpg | tr -d '\\n'; printf %s ${shellQuote(after)}) | `
    + curlLine(`${options}-H 'Content-Type: application/json' --data-binary @-`, path);
}

// Both stages of a pipeline have its name at Immich.
function immichLine(task, quoted) {
  const entries = `entries={"${task}": {"detection": {"modelName": ${quoted}}, "recognition": {"modelName": ${quoted}}}}`;
  return curlLine(`-F ${shellQuote(entries)} -F image=@photo.jpg`, "predict");
}

const withPhoto = "--data-binary @photo.jpg";
const isClasses = (m) => m.photos && LABEL_TASKS.includes(m.task);
const isBoxes = (m) => m.photos && BOX_TASKS.includes(m.task);
const isVector = (m) => m.photos && m.task === "embedding";
const isShapes = (m) => !m.pipeline && (isClasses(m) || isBoxes(m) || (m.photos && MASK_TASKS.includes(m.task)));
const isMarked = (m) => m.photos && m.task === "mask-generation";
const isNamed = (name) => (m) => m.name === name && m.pipeline;

// [the API, whether it takes a model, the line]. `quoted` is the model's name in JSON, `path` in an address.
const DOORS = [
  ["Open Inference Protocol (V2, Triton)", (m) => m.photos && !m.pipeline && m.input && !isMarked(m), ({ path, input }) =>
    jsonLine(`{"inputs": [{"name": ${JSON.stringify(input)}, "shape": [1], "datatype": "BYTES", "data": ["`, '"]}]}', `v2/models/${path}/infer`)],
  ["Open Inference Protocol (V2): inputs and outputs", (m) => !m.pipeline, ({ path }) => curlLine("-sS", `v2/models/${path}`)],
  ["KServe (V1)", (m) => m.photos && !m.pipeline && !isMarked(m), ({ path }) => jsonLine('{"instances": [{"b64": "', '"}]}', `v1/models/${path}:predict`)],
  ["TorchServe", (m) => m.photos && !m.pipeline && !isMarked(m), ({ path }) => curlLine(withPhoto, `predictions/${path}`)],
  ["Hugging Face", isShapes, ({ path }) => curlLine(withPhoto, `models/${path}`)],
  ["Roboflow Inference", (m) => !m.pipeline && (isClasses(m) || isBoxes(m)), ({ path, version }) =>
    `base64 < photo.jpg | ${curlLine("-d @-", `${path}/${version}`)}`],
  ["CodeProject.AI, DeepStack, Blue Iris, Frigate", (m) => isBoxes(m) && !m.pipeline, ({ path }) => curlLine("-F image=@photo.jpg", `v1/vision/custom/${path}`)],
  ["CodeProject.AI: scene", (m) => m.name === "scene" && isClasses(m), () => curlLine("-F image=@photo.jpg", "v1/vision/scene")],
  ["CodeProject.AI: number plates", isNamed("plates"), () => curlLine("-F upload=@photo.jpg", "v1/vision/alpr")],
  ["CodeProject.AI: text", isNamed("ocr"), () => curlLine("-F image=@photo.jpg", "v1/vision/ocr")],
  ["CodeProject.AI: faces", isNamed("faces"), () => curlLine("-F image=@photo.jpg", "v1/vision/face")],
  ["Plate Recognizer", isNamed("plates"), () => curlLine("-F upload=@photo.jpg", "v1/plate-reader/")],
  ["DOODS (Home Assistant)", (m) => isBoxes(m) && !m.pipeline, ({ quoted }) =>
    jsonLine(`{"detector_name": ${quoted}, "detect": {"*": 50}, "data": "`, '"}', "detect")],
  ["CVAT", (m) => isShapes(m), ({ name }) => jsonLine('{"image": "', '"}', "api/function_invocations", `-H ${shellQuote(`x-nuclio-function-name: ${name}`)} `)],
  ["CVAT: interactor", isMarked, ({ name }) => jsonLine('{"pos_points": [[9, 9]], "neg_points": [], "obj_bbox": null, "image": "', '"}',
    "api/function_invocations", `-H ${shellQuote(`x-nuclio-function-name: ${name}`)} `)],
  ["PhotoPrism: labels", (m) => isClasses(m) && !m.pipeline, ({ quoted }) =>
    jsonLine(`{"model": ${quoted}, "images": ["data:image/jpeg;base64,`, '"]}', "api/v1/vision/labels")],
  ["PhotoPrism: nsfw", (m) => isClasses(m) && NSFW.some((all) => all.every((label) => m.labels.includes(label))), ({ quoted }) =>
    jsonLine(`{"model": ${quoted}, "images": ["data:image/jpeg;base64,`, '"]}', "api/v1/vision/nsfw")],
  ["PhotoPrism: faces", isVector, ({ quoted }) => jsonLine(`{"model": ${quoted}, "images": ["data:image/jpeg;base64,`, '"]}', "api/v1/vision/face")],
  ["OpenAI's embeddings", isVector, ({ quoted }) => jsonLine(`{"model": ${quoted}, "input": ["data:image/jpeg;base64,`, '"]}', "v1/embeddings")],
  ["OpenAI's embeddings", (m) => m.isText, ({ quoted }) => curlLine(`-d ${shellQuote(`{"model": ${quoted}, "input": "a red car"}`)}`, "v1/embeddings")],
  ["llama.cpp's embeddings (Frigate)", isVector, ({ quoted }) =>
    jsonLine(`{"model": ${quoted}, "content": [{"prompt_string": "<__media__>", "multimodal_data": ["`, '"]}]}', "embeddings")],
  ["llama.cpp's embeddings (Frigate)", (m) => m.isText, ({ quoted }) =>
    curlLine(`-d ${shellQuote(`{"model": ${quoted}, "content": [{"prompt_string": "a red car"}]}`)}`, "embeddings")],
  ["Immich: clip", (m) => isVector(m) && m.hasText, ({ quoted }) =>
    curlLine(`-F ${shellQuote(`entries={"clip": {"visual": {"modelName": ${quoted}}}}`)} -F image=@photo.jpg`, "predict")],
  ["Immich: facial-recognition", (m) => m.pipeline && /^(faces$|buffalo_|antelopev2)/.test(m.name), ({ quoted }) => immichLine("facial-recognition", quoted)],
  ["Immich: ocr", (m) => m.pipeline && m.task === "text-detection", ({ quoted }) => immichLine("ocr", quoted)],
  ["Immich: clip", (m) => m.isText, ({ whole }) =>
    curlLine(`-F ${shellQuote(`entries={"clip": {"textual": {"modelName": ${whole}}}}`)} -F text='a red car'`, "predict")],
];

// Shows the lines for a model of `models`; what the tables of models lack is asked for.
async function showDoors(host, model, models, zmq) {
  const text = JSON.stringify([model, models.length, key.text !== "", zmq]);
  if (!model || host.dataset.shown === text) return;
  host.dataset.shown = text;
  delete host.dataset.done;
  const path = encodeURIComponent(model.name);
  const read = async (address) => {
    const answer = await call(address).catch(() => null);
    return answer && answer.ok ? answer.json() : {};
  };
  const { inputs = [] } = model.pipeline ? {} : await read(`v2/models/${path}`);
  const { labels = [] } = await read(`models/${path}/labels`);
  if (host.dataset.shown !== text) return; // another model was chosen
  const known = { ...model, path, labels, quoted: JSON.stringify(model.name), whole: JSON.stringify(model.name.replace(/\.text$/, "")),
    input: inputs.length === 1 ? inputs[0].name : "", isText: /\.text$/.test(model.name),
    hasText: models.some((other) => other.name === `${model.name}.text`) };
  const rows = DOORS.filter(([, takes]) => takes(known)).map(([name, , line]) => [name, line(known)]);
  const endpoint = /^\d+$/.test(zmq) ? `tcp://127.0.0.1:${zmq}` : /:\/\//.test(zmq) ? zmq : `tcp://${zmq}`;
  if (zmq && ["detection", "pose", "instance-segmentation"].includes(model.task) && !model.pipeline)
    rows.push(["Frigate, in its configuration", `detectors: {lensd: {type: zmq, endpoint: ${JSON.stringify(endpoint)}}}`]);
  if (!rows.length)
    rows.push(["lensd's own: no other API takes this model", curlLine("--data-binary @photo.jpg", `predict?model=${path}`)]);
  host.replaceChildren(...rows.flatMap(([name, line]) => {
    const pre = element("pre", "", line);
    pre.tabIndex = 0;
    return [element("h3", "", name), pre];
  }));
  host.dataset.done = "yes";
}

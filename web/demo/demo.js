// The page of `make web-demo`: users of one encoder, with and without sharing.
import { createBackend, createModel } from "cotensor";
import { fill, History, size } from "./charts.js";
import { gpuBytes, takePeak, watchGpu } from "./gpu_meter.js";
import { Clock } from "./clock.js";

watchGpu();

const form = document.querySelector("#settings");
const status = document.querySelector("#status");
const free = document.querySelector("#free");
const history = new History(document.querySelector("#history"), document.querySelector("#legend"));
/** What the last run with sharing holds. */
let shared = { backends: [], models: [] };

const say = (text) => (status.textContent = text);
const clock = new Clock(say);

async function listModels() {
  const names = await (await fetch("/models.json")).json();
  form.elements.model.replaceChildren(...names.map((name) => new Option(name, name)));
  if (!navigator.gpu) {
    form.elements.device.value = "cpu";
    say("This browser has no WebGPU: models run on the CPU.");
  }
}

/** Whether the processor does the work of the GPU. */
async function hasSoftwareGpu() {
  const info = (await navigator.gpu?.requestAdapter())?.info;
  return info !== undefined && (info.isFallbackAdapter || /swiftshader|llvmpipe|software/i.test(`${info.architecture} ${info.device} ${info.description}`));
}

async function chosenImage() {
  const [file] = form.elements.image.files;
  return file ?? (await fetch("/photo.png")).blob();
}

/** Loads the model for each user, and answers each. `together` gives all users one backend. */
async function run({ device, model, users, image, together }) {
  takePeak();
  const backends = [];
  const models = [];
  const answers = [];
  const start = performance.now();
  for (let user = 0; user < users; user += 1) {
    if (!together || user === 0) backends.push(await createBackend(device, { models: "/models/" }));
    clock.step(`${together ? "With" : "Without"} sharing: user ${user + 1} of ${users}`);
    const made = createModel(backends.at(-1), { modelId: model });
    models.push(made);
    await made.initialize();
    answers.push(await made.process({ image }));
  }
  const seconds = (performance.now() - start) / 1000;
  const stats = backends.map((backend) => backend.getStats());
  const sum = (pick) => stats.reduce((total, each) => total + pick(each), 0);
  const runs = answers.flatMap(({ stages }) => stages).filter(({ computed }) => computed).length;
  const copies = sum((each) => each.copies.reduce((total, { count }) => total + count, 0));
  return { backends, models, seconds, gpu: takePeak(), weights: sum((each) => each.weight_bytes), runs, copies, device: backends[0].device };
}

async function dispose({ backends = [], models = [] }) {
  for (const model of models) await model.dispose();
  for (const backend of backends) await backend.dispose();
}

async function compare(settings) {
  await freeShared();
  // With sharing, only the first user loads and runs the model.
  clock.start(settings.users + 1, settings.device === "webgpu" && (await hasSoftwareGpu()));
  const without = await run({ ...settings, together: false });
  await dispose(without);
  const together = await run({ ...settings, together: true });
  shared = together;
  free.disabled = false;
  const saved = (a, b) => (a > 0 ? `${Math.round((1 - b / a) * 100)} %` : "–");
  const row = (name, pick, show) => [name, show(pick(without)), show(pick(together)), saved(pick(without), pick(together))];
  fill(document.querySelector("#results"), [
    row("Time", ({ seconds }) => seconds, (value) => `${value.toFixed(2)} s`),
    row("Weights in engines", ({ weights }) => weights, size),
    row("Memory of the GPU, highest", ({ gpu }) => gpu, size),
    row("Runs of graphs", ({ runs }) => runs, String),
    row("Copies", ({ copies }) => copies, String),
  ]);
  clock.stop(`Done on ${together.device}. The tensors below stay until they are freed.`);
}

/** A name without the end of its hash. */
const short = (name) => name.replace(/([0-9a-f]{12})[0-9a-f]{52}$/, "$1…");

async function freeShared() {
  await dispose(shared);
  shared = { backends: [], models: [] };
  free.disabled = true;
}

function show() {
  const [backend] = shared.backends;
  const { tensors, copies } = backend ? backend.getDiagnostics() : { tensors: [], copies: [] };
  const stats = backend?.getStats();
  const holders = (each) => Object.entries(each).map(([name, count]) => `${name} (${count})`).join(", ") || "none";
  fill(
    document.querySelector("#list"),
    tensors.map((each) => [short(each.name), each.kind, `[${each.shape.join(", ")}]`, { bytes: each.bytes }, each.device, holders(each.holders), each.hits]),
  );
  fill(document.querySelector("#reasons"), copies.map(({ reason, count, bytes }) => [reason, count, { bytes }]));
  const devices = Object.fromEntries((stats?.devices ?? []).map(({ device, memory_usage_bytes }) => [`tensors on ${device}`, memory_usage_bytes]));
  history.add({ ...devices, "all buffers of the GPU": gpuBytes() });
  const totals = { Tensors: String(tensors.length), "Memory of tensors": size(Object.values(devices).reduce((a, b) => a + b, 0)), "Buffers of the GPU": size(gpuBytes()) };
  document.querySelector("#totals").replaceChildren(
    ...Object.entries(totals).map(([name, value]) => {
      const group = document.createElement("div");
      const [term, description] = [document.createElement("dt"), document.createElement("dd")];
      term.textContent = name;
      description.textContent = value;
      group.append(term, description);
      return group;
    }),
  );
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = form.querySelector("[type=submit]");
  button.disabled = true;
  try {
    const { model, device, users } = form.elements;
    await compare({ model: model.value, device: device.value, users: Number(users.value), image: await chosenImage() });
  } catch (error) {
    clock.stop(error.message);
  } finally {
    button.disabled = false;
  }
});
free.addEventListener("click", freeShared);

await listModels();
setInterval(show, 500);
show();

// What a site's first and second visit bring over the wire, beside onnxruntime-web alone. MODELS names a folder with model folders, MODEL one of
// them (a model of texts); by default a tiny one. Scripts are counted as gzip sends them; the server allows browsers to keep them.
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { gzipSync } from "node:zlib";
import { serve } from "../tests/support/server.mjs";
import { launch } from "../tests/support/tabs.mjs";

const { MODELS, MODEL = "bert" } = process.env;
const models = MODELS === undefined ? new URL("../../fixtures/tiny/", import.meta.url) : pathToFileURL(`${resolve(MODELS)}/`);
const server = await serve({ headers: { "cache-control": "public, max-age=31536000, immutable" }, folders: { checkpoints: models } });
const TEXT = "a photo of a cat";
const dist = (path) => new URL(path.startsWith("/ort/") ? `../node_modules/onnxruntime-web/dist/${path.slice(5)}` : `../dist${path}`, import.meta.url);
const zipped = new Map();

/** Bytes of a script or module as gzip sends it. */
function gzipBytes(path) {
  if (!zipped.has(path)) zipped.set(path, gzipSync(readFileSync(fileURLToPath(dist(path)))).length);
  return zipped.get(path);
}

/** What one page load with `program` brings, in bytes. */
async function visit(profile, program, device) {
  const { context, close } = await launch(profile);
  const before = server.requests.length;
  try {
    const page = await context.newPage();
    await page.goto(server.url);
    await page.evaluate(program, [MODEL, TEXT, device]);
  } finally {
    await close();
  }
  const seen = { library: 0, package: 0, model: 0, questions: 0 };
  for (const { method, path, bytes } of server.requests.slice(before)) {
    if (method === "HEAD") seen.questions += 1;
    else if (path.startsWith("/checkpoints/")) seen.model += bytes;
    else if (path.startsWith("/ort/")) seen.library += gzipBytes(path);
    else if (bytes > 0) seen.package += gzipBytes(path);
  }
  return seen;
}

/** Two visits of a new user. */
async function visits(program, device) {
  const profile = mkdtempSync(join(tmpdir(), "cotensor-bench-"));
  try {
    return [await visit(profile, program, device), await visit(profile, program, device)];
  } finally {
    rmSync(profile, { recursive: true, force: true });
  }
}

async function alone() {
  const ort = await import("/ort/ort.webgpu.bundle.min.mjs");
  ort.env.wasm.numThreads = 1;
  // A graph that cannot be read: the module of the library is loaded first.
  await ort.InferenceSession.create(new Uint8Array(8), { executionProviders: ["wasm"] }).catch(() => undefined);
}

async function shared([modelId, text, device]) {
  const { createBackend, createModel } = await import("cotensor");
  const backend = await createBackend(device, { models: "/checkpoints/" });
  await createModel(backend, { modelId, task: "sentence-embedding" }).process(text);
}

const mb = (bytes) => `${(bytes / 1e6).toFixed(2)} MB`;
const show = (name, { library, package: own, model, questions }) =>
  console.log(`${name.padEnd(28)} onnxruntime-web ${mb(library).padStart(9)}, package ${mb(own).padStart(8)}, model ${mb(model).padStart(9)}, ${questions} questions without a body`);
console.log(`${MODEL}: bytes over the wire; scripts as gzip sends them`);
const [first] = await visits(alone);
show("onnxruntime-web alone", first);
for (const device of ["webgpu", "cpu"]) {
  const [one, two] = await visits(shared, device);
  show(`Cotensor, ${device}, first visit`, one);
  show(`Cotensor, ${device}, second`, two);
  const beyond = one.library + one.package - first.library;
  console.log(`  without the model, beyond onnxruntime-web alone: ${mb(beyond)} (bound: 2 MB); second visit: ${two.library + two.package + two.model} bytes (bound: 0)`);
}
server.close();

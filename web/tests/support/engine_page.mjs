// What the tests of the adapter share in a page: the library, a counted GPUDevice, and graphs. Runs in browsers.
import { GpuMemory, OrtEngine, Store } from "/index.js";
import * as ort from "/ort/ort.webgpu.bundle.min.mjs";
import { countGpu } from "/support/gpu_counts.mjs";
import { onnxModel } from "/support/onnx.mjs";

ort.env.wasm.numThreads = 1;
ort.env.logLevel = "fatal";
export { ort };

/** A device, and what the page does with it. */
export async function newGpu() {
  const gpu = await (await navigator.gpu.requestAdapter()).requestDevice();
  return { gpu, counted: countGpu(gpu) };
}

let shared;

/** A store with an engine on the page's device, whose compiled shaders later tests use again. */
export async function create(options = {}, device) {
  const { gpu, counted } = device ?? (await (shared ??= newGpu()));
  const store = await Store.create({ memories: [new GpuMemory(gpu)], ...options });
  const engine = OrtEngine.create({ ort, store, provider: "webgpu" });
  counted.reset();
  return { gpu, counted, store, engine };
}

/** The copies of a store by reason: `[count, bytes]`. */
export const copies = (store) => Object.fromEntries(store.getDiagnostics().copies.map(({ reason, count, bytes }) => [reason, [count, bytes]]));

export const used = (store) => store.getStats().devices.find(({ device }) => device === "webgpu").memory_usage_bytes;

/** The kind and the text of the error of a call. */
export async function failure(call) {
  try {
    await call();
  } catch ({ kind, message }) {
    return [kind, message];
  }
  return ["none", "no error"];
}

/** The files of a graph with one operator. */
export const one = (op, inputs, outputs, more = {}) => ({
  graph: onnxModel({ inputs, outputs, nodes: [{ op, inputs: Object.keys(inputs), outputs: Object.keys(outputs), ...more }] }),
});

export const negate = (dtype = "float32", shape = ["n"]) => one("Neg", { x: [dtype, shape] }, { y: [dtype, shape] });

/** Adds two vectors. The library knows the length of the result after the run, unless the graph declares it. */
export const add = (declared = "c") => one("Add", { x: ["float32", ["a"]], z: ["float32", ["b"]] }, { y: ["float32", [declared]] });

export const floats = (...values) => ({ data: Float32Array.from(values), shape: [values.length] });

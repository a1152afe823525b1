// What the tests of WebNN share in a page. Runs in browsers.
import { OrtEngine, Store, WebnnMemory } from "/index.js";
import * as ort from "/ort/ort.webgpu.bundle.min.mjs";
import { onnxModel } from "/support/onnx.mjs";

ort.env.wasm.numThreads = 1;
ort.env.logLevel = "fatal";

/** A context on the processor, which counts its calls and its tensors. */
export async function newContext() {
  const context = await navigator.ml.createContext({ deviceType: "cpu" });
  const counts = {};
  const counted = {
    ...{ counts, live: 0, reset: () => Object.keys(counts).forEach((name) => delete counts[name]) },
    /** WebNN makes and destroys tensors in later turns. */
    settled: () => new Promise((resolve) => setTimeout(resolve, 10)),
  };
  for (const name of ["createTensor", "readTensor", "writeTensor", "dispatch"]) {
    const call = context[name].bind(context);
    context[name] = (...args) => {
      counts[name] = (counts[name] ?? 0) + 1;
      return name === "createTensor" ? call(...args).then(counting) : call(...args);
    };
  }
  function counting(tensor) {
    counted.live += 1;
    const destroy = tensor.destroy.bind(tensor);
    tensor.destroy = () => {
      counted.live -= 1;
      destroy();
    };
    return tensor;
  }
  return { context, counted };
}

let shared;

/** A store with an engine on the page's context. */
export async function create(options = {}, device) {
  const { context, counted } = device ?? (await (shared ??= newContext()));
  const store = await Store.create({ memories: [new WebnnMemory(context)], ...options });
  const engine = OrtEngine.create({ ort, store, provider: "webnn" });
  counted.reset();
  return { context, counted, store, engine };
}

/** The copies of a store by reason: `[count, bytes]`. */
export const copies = (store) => Object.fromEntries(store.getDiagnostics().copies.map(({ reason, count, bytes }) => [reason, [count, bytes]]));

/** The kind and the text of the error of a call. */
export async function failure(call) {
  try {
    await call();
  } catch ({ kind, message }) {
    return [kind, message];
  }
  return ["none", "no error"];
}

export const negate = (dtype, shape) => ({
  graph: onnxModel({ inputs: { x: [dtype, shape] }, outputs: { y: [dtype, shape] }, nodes: [{ op: "Neg", inputs: ["x"], outputs: ["y"] }] }),
});

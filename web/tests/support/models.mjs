// The tiny models of the fixtures, in Node and in browsers.
import { readSafetensors } from "./safetensors.mjs";

/** Reads a file below `fixtures/tiny`. */
export async function readFixture(path) {
  if (typeof document === "undefined" && typeof WorkerGlobalScope === "undefined") {
    const { readFile } = await import("node:fs/promises");
    return new Uint8Array(await readFile(new URL(`../../../fixtures/tiny/${path}`, import.meta.url)));
  }
  const answer = await fetch(`/fixtures/tiny/${path}`);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return new Uint8Array(await answer.arrayBuffer());
}

/** The graph of a model with its weights. */
export async function readGraph(model, graph) {
  const file = `${graph}.onnx`;
  const data = () => readFixture(`${model}/onnx/${file}_data`);
  const hasData = !(model === "bert" && graph.startsWith("head"));
  return { graph: await readFixture(`${model}/onnx/${file}`), externalData: hasData ? [{ path: `${file}_data`, data: await data() }] : [] };
}

/** The references of a model: `{ inputs, outputs }` of a case such as `model.b3`. */
export async function readReference(model, name) {
  const tensors = readSafetensors(await readFixture(`${model}/reference.safetensors`));
  const pick = (side) => {
    const prefix = `${name}.${side}.`;
    return Object.fromEntries(Object.entries(tensors).filter(([each]) => each.startsWith(prefix)).map(([each, tensor]) => [each.slice(prefix.length), tensor]));
  };
  return { inputs: pick("in"), outputs: pick("out") };
}

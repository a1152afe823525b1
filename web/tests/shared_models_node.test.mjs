// Models of a hub in this process of Node, on the CPU.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { relative } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import * as ort from "onnxruntime-web";
import { connectShared, createModel, createVitModel, serve as serveHub, SharedBackend } from "cotensor";
import { RealmLocks } from "../dist/locks.js";
import { serve } from "./support/server.mjs";

ort.env.wasm.numThreads = 1;
ort.env.logLevel = "fatal";
const photo = await readFile(new URL("../../fixtures/media/photo.png", import.meta.url)).then((bytes) => new Uint8Array(bytes));
let hubs = 0;
let server;

before(async () => (server = await serve()));
after(() => server.close());

/** A client of a hub of its own, with a backend of the server's models. Each run of a graph waits for `before`. */
async function open(sources = { models: `${server.url}models/` }, before = () => undefined) {
  const create = async (...args) => {
    const session = await ort.InferenceSession.create(...args);
    const run = session.run.bind(session);
    session.run = async (...rest) => {
      await before();
      return run(...rest);
    };
    return session;
  };
  const locks = new RealmLocks();
  const hub = serveHub({ locks, ort: { env: ort.env, Tensor: ort.Tensor, InferenceSession: { create } } });
  const store = await connectShared({ mode: "page", hub: `models${(hubs += 1)}`, page: () => hub, locks, holder: "tab" });
  return { store, backend: new SharedBackend(store, { priorityList: ["cpu"], ...sources }) };
}

const vitOf = (backend) => createVitModel(backend, { modelId: "google/vit-base-patch16-224" });

test("calls of one model at the same time have leases of their own", async () => {
  let release;
  const released = new Promise((resolve) => (release = resolve));
  const { store, backend } = await open(undefined, () => released);
  const vit = vitOf(backend);
  await vit.initialize();
  // One runs the graph; the others wait for its result, and end in the same turn.
  const calls = Array.from({ length: 4 }, () => vit.process({ image: photo }));
  for (let turn = 0; turn < 10; turn += 1) await store.names();
  release();
  const values = (await Promise.all(calls)).map(({ outputs }) => [...outputs[0].values]);
  for (const each of values) assert.deepEqual(each, values[0]);
  // The worker's model and the tab.
  assert.equal(await vit.getSharedTensor("vision_embedding").referenceCount(), 2);
  await store.close();
});

test("a part of a tensor replaces a stage as this part", async () => {
  const { store, backend } = await open({ models: `${server.url}fixtures/tiny/` });
  const vit = (options) => createModel(backend, { modelId: "vit", ...options });
  const encoder = vit({ task: "image-embedding" });
  await encoder.process({ image: photo });
  const whole = encoder.getSharedTensor("vision_embedding");
  const part = await whole.view([0, 0, 0], [1, 2, 32]);
  const { output_tensors } = await vit({ task: "image-embedding" }).processWithSharedEmbeddings([part]);
  const made = output_tensors.vision_embedding;
  assert.deepEqual([made.shape, await made.read("test")], [[1, 2, 32], (await whole.read("test")).slice(0, 64)]);
  await store.close();
});

test("a model that is disposed while it runs in the hub leaves no lease of the client", async () => {
  const { store, backend } = await open();
  const vit = vitOf(backend);
  await vit.initialize();
  const { connection } = store;
  const call = connection.call.bind(connection);
  // The answer is on its way when the page disposes the model.
  connection.call = async (method, ...rest) => {
    const answer = await call(method, ...rest);
    if (method === "model.process") await vit.dispose();
    return answer;
  };
  await assert.rejects(vit.process({ image: photo }), { kind: "Conflict", message: /disposed while it ran/ });
  const { tensors } = await store.getDiagnostics();
  assert.deepEqual(tensors.filter(({ holders }) => Object.keys(holders).length > 0), []);
  assert.throws(() => vit.getSharedTensor("vision_embedding"), { kind: "NotFound" });
  await store.close();
});

test("a text arrives piece by piece, and a call that its program ends is not decoded to its end", async () => {
  let runs = 0;
  const { store, backend } = await open({ models: `${server.url}fixtures/tiny/` }, () => void (runs += 1));
  const llama = createModel(backend, { modelId: "llama", maxNewTokens: 12 });
  const pieces = [];
  const { text } = await llama.process("a photo of a cat", { onText: (piece) => pieces.push(piece) });
  assert.ok(pieces.length > 1 && pieces.join("") === text, JSON.stringify([pieces, text]));
  // Another call has decoded it: the text comes at once.
  const again = [];
  assert.equal((await llama.process("a photo of a cat", { onText: (piece) => again.push(piece) })).text, again.join(""));
  const whole = runs;
  const failing = llama.process("two windows", { onText: () => { throw new RangeError("no room"); } });
  await assert.rejects(failing, { name: "RangeError", message: "no room" });
  const abort = new AbortController();
  let given = 0;
  const aborted = llama.process("a diagram", { signal: abort.signal, onText: () => ((given += 1), abort.abort()) });
  await assert.rejects(aborted, { name: "AbortError" });
  // The next call runs behind them.
  const { answer } = await llama.process("a photo of a cat");
  assert.equal(answer.text, text);
  assert.ok(given === 1 && runs < 2 * whole, `${given} pieces, ${runs} runs, ${whole} for a whole text`);
  await assert.rejects(createModel(backend, { modelId: "bert" }).process("a photo", { onText: () => undefined }), { kind: "Invalid", message: /^onText: .*decodes no text/ });
  await store.close();
});

test("relative addresses are those of the page, and the name of a model stays", async () => {
  // In Node, the base is the folder in which it runs.
  const tiny = `./${relative(process.cwd(), fileURLToPath(new URL("../../fixtures/tiny", import.meta.url)))}`;
  const { store, backend } = await open({ models: tiny });
  for (const modelId of ["vit", `${tiny}/vit`]) {
    const vit = createVitModel(backend, { modelId });
    const { model, answer } = await vit.process({ image: photo });
    assert.deepEqual([vit.modelId, model, answer.type], [modelId, modelId, "embedding"]);
    assert.ok(`tab/${modelId}` in (await vit.getSharedTensor("vision_embedding").holders()));
    await vit.dispose();
  }
  const asked = new SharedBackend(store, { priorityList: ["cpu"], endpoint: "./none" });
  await assert.rejects(createVitModel(asked, { modelId: "a/b" }).initialize(), { kind: "NotFound", message: /file:.*\/none\/a\/b\/resolve\/main\/ has no config\.json/ });
  for (const field of ["models", "endpoint"]) assert.throws(() => new SharedBackend(store, { [field]: "http://" }), { kind: "Invalid", message: new RegExp(`^${field}: "http://" is not a URL here`) });
  await assert.rejects(connectShared({ mode: "page", hub: "wrong", ort: "http://" }), { kind: "Invalid", message: /^ort: / });
  await store.close();
});

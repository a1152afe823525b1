// Models in Node, on the CPU: errors in the words of the program, and what is asked of a server.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import * as ort from "onnxruntime-web";
import { createBackend, createBertModel, createModel, createVitModel, createWhisperModel, MemoryFolders, ResourcePoolBridgeIntegration, WeightCache } from "cotensor";
import { newHasher } from "../dist/models/core.js";
import { serve } from "./support/server.mjs";

ort.env.wasm.numThreads = 1;
ort.env.logLevel = "fatal";
const media = (name) => readFile(new URL(`../../fixtures/media/${name}`, import.meta.url)).then((bytes) => new Uint8Array(bytes));
const bert = (backend, more) => createBertModel(backend, { modelId: "bert-base-uncased", ...more });
const refusal = (promise) => promise.then(() => "no error", ({ kind, message }) => `${kind} ${message}`);
let server;

before(async () => (server = await serve()));
after(() => server.close());

/** A backend whose models are those of the server, or of `models`. */
const open = (more = {}) => createBackend("cpu", { ort, models: `${server.url}models/`, ...more });

test("after dispose, and while it is disposed, a model says so", async () => {
  const backend = await open();
  const model = bert(backend);
  await model.initialize();
  const running = refusal(model.process("a text that runs while the model is disposed"));
  await model.dispose();
  assert.match(await running, /^(no error|Conflict .*disposed)/);
  assert.match(await refusal(model.process("a text")), /^Conflict bert-base-uncased: the model was disposed/);
  const other = bert(backend);
  await other.initialize();
  await backend.dispose();
  for (const call of [other.process("a text"), other.tokenize("a text"), other.initialize()]) assert.match(await refusal(call), /^Conflict the backend was disposed/);
});

test("texts without an image, tokens without a text, and budgets of missing devices", async () => {
  const backend = await open({ budgets: { webgpu: 2 ** 20, cpu: 2 ** 26 } });
  const model = bert(backend);
  const { text, input_ids } = await model.tokenize("a photo");
  assert.equal((await model.process({ text, input_ids })).task, "sentence-embedding");
  assert.match(await refusal(model.process({ text: { text, input_ids: [...input_ids].reverse() } })), /^Invalid input_ids: /);
  assert.match(await refusal(model.process({ text, samplingrate: 8000 })), /^Invalid samplingrate: an unknown input; text, .* samplingRate are read/);
  assert.match(await refusal(model.process({ input_ids: [1, 2] })), /^Invalid text: a text is required, or tokens/);
  assert.match(await refusal(bert(backend, { promptName: "question" }).process({ text })), /^Invalid promptName: the model has no prompt "question"/);
  assert.equal((await model.process({ text, image: undefined, caption: undefined })).task, "sentence-embedding");
  assert.match(await refusal(bert(backend, { encoder: { model: "m" } }).process({ text })), /^Invalid encoder: pages do not read/);
  assert.match(await refusal(bert(backend, { seed: 5n }).process({ text })), /^Invalid seed: /);
  assert.deepEqual(backend.getStats().devices.map(({ device, max_memory_bytes }) => [device, max_memory_bytes]), [["cpu", 2 ** 26]]);
  await backend.dispose();
  assert.match(await refusal(open({ budgets: { gpu: 1 } }).then((each) => each.initialize())), /^Invalid budgets: no memory of the store is on gpu/);
});

test("a notice names each text that is cut", async () => {
  const backend = await open();
  const clip = createModel(backend, { modelId: "openai/clip-vit-base-patch16" });
  const [image, long] = [await media("photo.png"), "gulls ".repeat(200)];
  const { notices } = await clip.process({ image, texts: [long, "a photo", `nets ${long}`] });
  const cut = notices.filter((notice) => notice.includes("truncated"));
  assert.deepEqual(cut, ["texts[0]: truncated to 32 tokens", "texts[2]: truncated to 32 tokens"]);
  await backend.dispose();
});

test("a file that is too large is refused before it is read", async () => {
  class Large extends Blob {
    get size() {
      return 2 ** 28 + 1;
    }
    arrayBuffer() {
      assert.fail("it is read");
    }
  }
  const backend = await open();
  const model = createVitModel(backend, { modelId: "google/vit-base-patch16-224" });
  assert.match(await refusal(model.process({ image: new Large() })), /^Invalid image: a file of 268435457 bytes; at most 268435456 are read/);
  const answer = globalThis.fetch;
  globalThis.fetch = (url, init) => (String(url).endsWith("/large.png") ? Promise.resolve(new Response("", { headers: { "content-length": 2 ** 28 + 1 } })) : answer(url, init));
  try {
    assert.match(await refusal(model.process({ image: `${server.url}large.png` })), /^Refused .*large.png: 268435457 bytes/);
  } finally {
    globalThis.fetch = answer;
  }
  await backend.dispose();
});

test("a pointer of Git LFS or a page in place of a graph is named", async () => {
  const contents = {
    lfs: "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12\n",
    page: "\n<!DOCTYPE html><title>Login</title>",
  };
  for (const [name, content] of Object.entries(contents)) {
    const answer = globalThis.fetch;
    globalThis.fetch = (url, init) => {
      if (!url.endsWith("/onnx/model.onnx")) return answer(url, init);
      return Promise.resolve(new Response(init?.method === "HEAD" ? null : content, { headers: { etag: `"${name}"` } }));
    };
    const backend = await open();
    try {
      const error = await refusal(bert(backend).initialize());
      assert.match(error, name === "lfs" ? /^Corrupt .*model.onnx: .* pointer of Git LFS/ : /^NotFound .*model.onnx: .* HTML page/);
    } finally {
      globalThis.fetch = answer;
      await backend.dispose();
    }
  }
});

test("a head of another class is refused, and a head beside the graph is preferred to the one in it", async () => {
  const task = "image-classification";
  const cases = {
    // Its own head in its own graph.
    own: [{}, /^no error/],
    class: [{ "/config.json": (config) => config.replace("Dinov2ForImageClassification", "Dinov2ForDepthEstimation") }, /^Invalid .*architectures: the head of Dinov2ForDepthEstimation is for another task than image-classification/],
    beside: [{ "/onnx/head.onnx": () => "not a graph" }, /head\.onnx/],
  };
  const answer = globalThis.fetch;
  for (const [name, [changed, expected]] of Object.entries(cases)) {
    globalThis.fetch = async (url, init) => {
      const change = Object.entries(changed).find(([file]) => String(url).endsWith(file))?.[1];
      if (!change) return answer(url, init);
      const given = await answer(url, { ...init, method: "GET" });
      return new Response(init?.method === "HEAD" ? null : change(given.ok ? await given.text() : ""), { headers: { etag: `"${name}"` } });
    };
    const backend = await open({ models: `${server.url}fixtures/tiny/`, cache: await WeightCache.open({ newHasher, folders: new MemoryFolders(name) }) });
    try {
      assert.match(await refusal(createModel(backend, { modelId: "dinov2", task }).process({ image: await media("photo.png") })), expected, name);
    } finally {
      globalThis.fetch = answer;
      await backend.dispose();
    }
  }
});

test("opening a model asks for the files that its description names, and little more", async () => {
  const asked = async (create, modelId) => {
    const backend = await open({ cache: await WeightCache.open({ newHasher, folders: new MemoryFolders("test") }) });
    const before = server.requests.length;
    const model = create(backend, { modelId });
    await model.initialize();
    const requests = server.requests.slice(before).map(({ path }) => path.slice(`/models/${modelId}/`.length));
    await backend.dispose();
    return [requests.length, new Set(requests.filter((path) => path.endsWith(".onnx"))).size];
  };
  const seen = { bert: await asked(createBertModel, "bert-base-uncased"), vit: await asked(createVitModel, "google/vit-base-patch16-224"), whisper: await asked(createWhisperModel, "openai/whisper-tiny") };
  // A question and a download for each graph and its weights; the rest are settings.
  assert.deepEqual(Object.values(seen).map(([, graphs]) => graphs), [1, 1, 3]);
  for (const [name, [requests]] of Object.entries(seen)) assert.ok(requests <= 24, `${name}: ${requests} requests`);
});

test("a graph under another name, and one of a variant, are found", async () => {
  const backend = await open({ models: `${server.url}fixtures/tiny/` });
  const config = JSON.stringify({ model_type: "bert" });
  const { graphFiles, wholeGraph } = await import("../dist/models/graph_files.js");
  await backend.initialize();
  const found = async (files, variant, of = config) => {
    const asked = [];
    const folder = { has: async (file) => (asked.push(file), files.includes(file)) };
    return [(await graphFiles(folder, of, variant)).sort(), asked.length];
  };
  assert.deepEqual(await found(["onnx/model.onnx", "onnx/model_fp16.onnx"]), [["onnx/model.onnx"], 1]);
  assert.deepEqual(await found(["onnx/model.onnx", "onnx/model_fp16.onnx"], "fp16"), [["onnx/model_fp16.onnx"], 1]);
  assert.deepEqual((await found(["model_bnb4.onnx"]))[0], ["model_bnb4.onnx"]);
  assert.deepEqual(await found([]), [[], 34]);
  // The error of a missing variant lists the graphs that are there.
  assert.deepEqual((await found(["onnx/model.onnx", "onnx/model_q4.onnx"], "fp16"))[0], ["onnx/model.onnx", "onnx/model_q4.onnx"]);
  const clip = JSON.stringify({ model_type: "clip" });
  const [towers, count] = await found(["onnx/vision_model.onnx", "onnx/text_model.onnx"], undefined, clip);
  assert.deepEqual(towers, ["onnx/text_model.onnx", "onnx/vision_model.onnx"]);
  assert.equal(count, 2);
  const whole = (files) => wholeGraph({ has: async (file) => files.includes(file) }, clip, undefined);
  assert.deepEqual([await whole(["onnx/model.onnx", "model.onnx"]), await whole(["onnx/model_q4.onnx"]), await whole(["onnx/text_model.onnx"])], ["onnx/model.onnx", "onnx/model_q4.onnx", null]);
  await backend.dispose();
});

test("a signal ends the waiting of its call alone", async () => {
  const answer = globalThis.fetch;
  let asked = 0;
  let release;
  const released = new Promise((resolve) => (release = resolve));
  globalThis.fetch = async (url, init) => {
    if (!url.endsWith(".onnx_data") || init?.method === "HEAD") return answer(url, init);
    asked += 1;
    await released;
    return answer(url, init);
  };
  const backend = await open();
  try {
    const [one, two] = [bert(backend), bert(backend)];
    const abort = new AbortController();
    const first = one.initialize({ signal: abort.signal }).then(() => "done", ({ name }) => name);
    const second = two.initialize();
    while (asked === 0) await new Promise((resolve) => setTimeout(resolve, 5));
    abort.abort();
    assert.equal(await first, "AbortError");
    release();
    await second;
    assert.equal(asked, 1, "the download went on");
    assert.equal(await one.process("a text", { signal: abort.signal }).catch(({ name }) => name), "AbortError");
    await two.process("a text");
    const held = two.getSharedTensor("text_embedding");
    const later = new AbortController();
    const running = two.process("another text", { signal: later.signal }).catch(({ name }) => name);
    later.abort();
    assert.equal(await running, "AbortError");
    // Behind the aborted run.
    await one.process("a third text");
    assert.equal(two.getSharedTensor("text_embedding"), held, "the tensors of the last input stay");
    assert.equal(held.getReferenceCount(), 1);
  } finally {
    globalThis.fetch = answer;
    await backend.dispose();
  }
});

test("a signal ends the waiting for a backend, for tokens and for a model of a pool", async () => {
  const answer = globalThis.fetch;
  let release;
  const released = new Promise((resolve) => (release = resolve));
  globalThis.fetch = (url, init) => (String(url).endsWith("config.json") ? released.then(() => answer(url, init)) : answer(url, init));
  const backend = await open();
  const pool = new ResourcePoolBridgeIntegration({ ort, models: `${server.url}models/` });
  const cpu = { priorityList: ["cpu"] };
  try {
    const abort = new AbortController();
    const { signal } = abort;
    const model = bert(backend);
    const calls = [model.tokenize("a text", { signal }), model.tokenizeText("a text", { signal }), pool.getModel("bert", "bert-base-uncased", cpu, { signal })];
    const names = calls.map((call) => call.then(() => "done", ({ name }) => name));
    abort.abort();
    assert.deepEqual(await Promise.all(names), ["AbortError", "AbortError", "AbortError"]);
    assert.equal(await backend.initialize({ signal }).catch(({ name }) => name), "AbortError");
    release();
    // What others wait for went on.
    assert.equal((await model.tokenize("a text")).text, "a text");
    const [pooled, same] = await Promise.all([1, 2].map(() => pool.getModel("bert", "bert-base-uncased", cpu)));
    assert.equal(pooled, same);
  } finally {
    release();
    globalThis.fetch = answer;
    await pool.dispose();
    await backend.dispose();
  }
});

test("a model that is disposed while it runs leaves no lease, and a pool loads it anew", async () => {
  const pool = new ResourcePoolBridgeIntegration({ ort, models: `${server.url}models/` });
  const cpu = { priorityList: ["cpu"] };
  const first = await pool.getModel("bert", "bert-base-uncased", cpu);
  const { store } = first.model.backend;
  // Disposed in the last step of the run, in which its stages have their results.
  const loaded = await first.model.backend.openModel("bert-base-uncased", {});
  const answers = loaded.answers.bind(loaded);
  loaded.answers = async (task) => {
    const reader = await answers(task);
    void first.model.dispose();
    return reader;
  };
  assert.match(await refusal(first("a text")), /^Conflict bert-base-uncased: the model was disposed while it ran/);
  assert.deepEqual(store.getDiagnostics().tensors.filter(({ holders }) => Object.keys(holders).length > 0), []);
  const [again, same] = [await pool.getModel("bert", "bert-base-uncased", cpu), await pool.getModel("bert", "bert-base-uncased", cpu)];
  assert.ok(again !== first && again === same);
  assert.equal((await again("a text")).answer.type, "embedding");
  await pool.dispose();
});

test("a program may fill its arrays anew once a call returned its promise", async () => {
  const backend = await open();
  const vit = createVitModel(backend, { modelId: "google/vit-base-patch16-224" });
  const file = await media("photo.png");
  const picture = Uint8ClampedArray.from({ length: 32 * 32 * 4 }, (_, index) => (index * 7) % 251);
  const inputs = [{ imageData: picture, width: 32, height: 32 }, { image: file }];
  const expected = [];
  for (const input of inputs) expected.push([...(await vit.process(input)).outputs[0].values]);
  const calls = inputs.map((input) => vit.process(input));
  picture.fill(0);
  file.fill(0);
  assert.deepEqual((await Promise.all(calls)).map(({ outputs }) => [...outputs[0].values]), expected);
  const model = bert(backend);
  const [texts, tokens] = [["a photo", "two cats"], await model.tokenize("a photo")];
  const lists = [texts, { texts }, tokens].map((input) => model.process(input));
  texts.splice(0, 2, "another text");
  tokens.input_ids.reverse();
  assert.deepEqual((await Promise.all(lists)).map(({ outputs }) => outputs[0].shape), [[2, 32], [2, 32], [32]]);
  await backend.dispose();
});

test("weights that were removed while a model is open are imported again", async () => {
  const cache = await WeightCache.open({ newHasher, folders: new MemoryFolders("test") });
  const backend = await open({ cache });
  const model = await backend.openModel("bert-base-uncased", {});
  await model.space("encoder");
  await cache.prune(0);
  assert.equal((await model.stage("encoder")).role, "encoder");
  await backend.dispose();
});

test("a sound of another rate has a notice", async () => {
  const backend = await open();
  const whisper = createWhisperModel(backend, { modelId: "openai/whisper-tiny", maxNewTokens: 2 });
  const samples = Float32Array.from({ length: 8000 }, (_, index) => Math.sin(index / 5) / 2);
  const notices = async (input) => (await whisper.process(input)).notices.filter((notice) => /resampled/.test(notice));
  assert.deepEqual(await notices({ audio: samples, samplingRate: 8000 }), ["audio: resampled from 8000 to 16000 Hz"]);
  assert.deepEqual(await notices({ audio: samples, samplingRate: 16_000 }), []);
  await backend.dispose();
});

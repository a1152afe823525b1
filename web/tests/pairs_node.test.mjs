// Prompts, pairs of texts and sounds in Node, on the CPU: what changes the answer, and what is refused.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import * as ort from "onnxruntime-web";
import { createBackend, createModel } from "cotensor";
import { Run } from "../dist/models/run.js";
import { serve } from "./support/server.mjs";

ort.env.wasm.numThreads = 1;
ort.env.logLevel = "fatal";
const refusal = (promise) => promise.then(() => "no error", ({ kind, message }) => `${kind} ${message}`);
let server, backend;

before(async () => {
  server = await serve();
  backend = await createBackend("cpu", { ort, models: `${server.url}unpacked/` });
});
after(async () => {
  await backend.dispose();
  server.close();
});

const model = (modelId, options) => createModel(backend, { modelId, ...options });
const rows = ({ outputs: [{ shape: [count, width], values }] }) => Array.from({ length: count }, (_, row) => [...values.subarray(row * width, (row + 1) * width)]);

test("a prompt is before one text and before each of many", async () => {
  for (const [name, prompts] of [["embedders/nomic", [undefined, "query", "document"]], ["embedders/jina-v3", ["retrieval.query", "document", "separation"]]]) {
    const seen = new Set();
    for (const promptName of prompts) {
      const embedder = model(name, promptName === undefined ? {} : { promptName });
      const one = [...(await embedder.process("two windows")).outputs[0].values];
      const [, second] = rows(await embedder.process(["a photo of a cat", "two windows"]));
      one.forEach((value, index) => assert.ok(Math.abs(value - second[index]) < 1e-5, `${name} ${promptName}`));
      seen.add(one.join());
    }
    assert.equal(seen.size, prompts.length, name);
  }
  assert.match(await refusal(model("embedders/nomic", { promptName: "question" }).process("a text")), /^Invalid promptName: the model has no prompt "question"; it has: document, query/);
  assert.match(await refusal(model("embedders/jina-v3").process("a text")), /^Invalid .*promptName: the model needs one of its tasks/);
  assert.match(await refusal(model("embedders/jina-v3").process(["a text"])), /^Invalid .*promptName: the model needs one of its tasks/);
  assert.match(await refusal(model("tiny/vit", { promptName: "query" }).process({ image: new Uint8Array(1) })), /^Invalid .*promptName: image-embedding reads no prompt/);
});

test("texts are scored beside a text", async () => {
  const texts = ["Gulls.", "gulls ".repeat(200), "Nets dry on the quay."];
  const reranker = model("relatives/roberta");
  const { task, answer, outputs, notices } = await reranker.process({ text: "Gulls.", texts });
  assert.deepEqual([task, answer.type, answer.texts.length], ["rerank", "scores", 3]);
  assert.deepEqual(outputs.map(({ name, shape }) => [name, ...shape]), [["scores", 3], ["logits", 3], ["tokens", 3], ["truncated", 3]]);
  assert.deepEqual([...outputs[3].values], [0, 1, 0]);
  assert.deepEqual(notices, [`texts[1]: the pair was truncated to ${outputs[2].values[1]} tokens`]);
  // Equal pairs of another list are results.
  const again = await reranker.process({ text: "Gulls.", texts: texts.slice(0, 1) });
  assert.ok(again.stages.every(({ computed }) => !computed));
  assert.equal(again.outputs[1].values[0], outputs[1].values[0]);
});

test("the number of rows of logits has the rank that the graph declares", async () => {
  const run = new Run({}, "test", {}, {}, new Map(), {}, {});
  const given = async (shape) => run.source("text.logits", {}, { name: "num_logits_to_keep", shape });
  for (const [declared, shape] of [[[], []], [[1], [1]], [["rows"], [1]]]) assert.deepEqual(await given(declared), { data: BigInt64Array.of(1n), shape, dtype: "int64" });
});

test("half of a surrogate pair is one character for a reranker, too", async () => {
  const [half, read] = ["gulls \ud83d", "gulls \ufffd"];
  const { outputs: [{ values }] } = await model("relatives/roberta").process({ text: half, texts: [half, read] });
  assert.equal(values[0], values[1]);
});

test("a task of scores without a text or texts, and a model that gives no score, are refused", async () => {
  const both = { text: "Gulls.", texts: ["Gulls."] };
  assert.match(await refusal(model("relatives/roberta", { task: "rerank" }).process({ text: "Gulls." })), /^Invalid .*texts: rerank needs texts/);
  assert.match(await refusal(model("relatives/roberta", { task: "rerank" }).process({ texts: ["Gulls."] })), /^Invalid text: rerank of .* give `text` and `texts`/);
  assert.match(await refusal(model("relatives/roberta").process({ text: "Gulls.", texts: Array(1025).fill("a") })), /^Invalid .*texts: 1025 texts; at most 1024/);
  assert.match(await refusal(model("forms/classification", { task: "rerank" }).process(both)), /^Unsupported texts\[0\]: logits: a reranker gives one number .* gives 3/);
  assert.match(await refusal(model("tiny/vit").process(both)), /^Invalid task: no task of tiny\/vit is meant by text/);
  assert.match(await refusal(model("embedders/reranker").process({ text: "Gulls.", texts: ["Gulls.", "gulls ".repeat(300)] })), /^Invalid texts\[1\]: text: the prompt with both texts is longer/);
  const embedder = model("relatives/roberta", { task: "sentence-embedding" });
  await embedder.process("Gulls.");
  const tensor = embedder.getSharedTensor("text_embedding");
  assert.match(await refusal(model("relatives/roberta", { task: "rerank" }).processWithSharedEmbedding(both, tensor)), /^Invalid tensors: rerank .* reads pairs of texts/);
});

test("CLAP reads samples as it reads their file, and a short sound of Wav2Vec2 is refused", async () => {
  const sound = new Uint8Array(await readFile(new URL("../../fixtures/media/speech.wav", import.meta.url)));
  const samples = Float32Array.from(new Int16Array(sound.slice(44).buffer), (sample) => sample / 32768);
  const clap = model("sounds/clap", { task: "audio-embedding" });
  const embed = async (input) => [...(await clap.process(input)).outputs[0].values];
  assert.deepEqual(await embed({ audio: samples, samplingRate: 8000 }), await embed({ audio: sound }));
  const error = await refusal(model("sounds/wav2vec2-ctc").process({ audio: samples.slice(0, 100), samplingRate: 8000 }));
  assert.match(error, /^Invalid .*the sound is too short: 100 samples/);
});

test("a graph is told whether a sound is longer than the window of CLAP", async () => {
  const clap = await backend.openModel("sounds/clap", { modelId: "sounds/clap" });
  const longer = async (count) => {
    const values = {};
    const inputs = { audio: { samples: new Float32Array(count).fill(0.1), samplingRate: 8000 } };
    await clap.prepare("audio", { model: clap, holder: "test", inputs, notices: [], setValue: (source, value) => (values[source] = value) });
    values["audio.features"].dispose();
    const { data, shape, dtype } = values["audio.longer"];
    assert.deepEqual([[...shape], dtype], [[1, 1], "bool"]);
    return data[0];
  };
  assert.deepEqual([await longer(8000), await longer(8400)], [0, 1]);
  await backend.releaseModel(clap);
});

// Embeddings of many texts, in Node on the CPU.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import * as ort from "onnxruntime-web";
import { createBertModel, createCpuBackend, createModel } from "cotensor";
import { TokenRows } from "../dist/models/token_rows.js";
import { serve } from "./support/server.mjs";

ort.env.wasm.numThreads = 1;
ort.env.logLevel = "fatal";
const WORDS = "a photo of the cat beside two windows in an old house".split(" ");
/** Texts of 1 to 12 words, in no order. */
const TEXTS = Array.from({ length: 32 }, (_, index) => Array.from({ length: ((index * 7) % 12) + 1 }, (_, word) => WORDS[(index + word) % WORDS.length]).join(" "));
let server;

before(async () => (server = await serve()));
after(() => server.close());

/** A backend that counts the runs of graphs. The first `fails` runs fail. */
async function open({ fails = 0, ...more } = {}) {
  const counts = { runs: 0, rows: 0 };
  const create = async (...args) => {
    const session = await ort.InferenceSession.create(...args);
    const run = session.run.bind(session);
    session.run = (feeds, ...rest) => {
      counts.runs += 1;
      counts.rows += feeds.input_ids?.dims[0] ?? 0;
      if (counts.runs <= fails) return Promise.reject(new Error("no memory"));
      return run(feeds, ...rest);
    };
    return session;
  };
  const counting = { env: ort.env, Tensor: ort.Tensor, InferenceSession: { create } };
  const backend = await createCpuBackend({ ort: counting, models: `${server.url}models/`, ...more });
  return { backend, counts };
}

const bert = (backend, more) => createBertModel(backend, { modelId: "bert-base-uncased", ...more });
const difference = (a, b) => Math.max(...a.map((value, index) => Math.abs(value - b[index])));
const row = ({ values, shape: [, width] }, index) => [...values.slice(index * width, (index + 1) * width)];

test("embeddings of texts equal those of each text alone, and take few runs", async () => {
  const { backend, counts } = await open();
  const model = bert(backend);
  const { answer, outputs: [all], stages } = await model.process(TEXTS);
  assert.deepEqual([all.name, all.shape[0], all.shape[1], stages.length], ["sentence_embedding", TEXTS.length, answer.width, 1]);
  assert.ok(counts.runs <= 3, `${counts.runs} runs`);
  assert.equal(counts.rows, new Set(TEXTS).size, "equal texts run once");
  for (const [index, text] of TEXTS.entries()) {
    const { outputs: [alone] } = await model.process(text);
    assert.ok(difference(row(all, index), [...alone.values]) < 1e-6, text);
  }
  await backend.dispose();
});

test("embeddings are computed once: later calls and calls at the same time reuse them", async () => {
  const { backend, counts } = await open();
  const [one, two] = [bert(backend), bert(backend)];
  const [first, second] = await Promise.all([one.process(TEXTS), two.process({ texts: [...TEXTS].reverse() })]);
  assert.equal(counts.rows, new Set(TEXTS).size);
  assert.deepEqual(row(second.outputs[0], TEXTS.length - 1), row(first.outputs[0], 0));
  const runs = counts.runs;
  const { stages } = await one.process(TEXTS.slice(4, 8));
  assert.deepEqual([counts.runs, stages[0].computed], [runs, false]);
  await backend.dispose();
});

test("a text whose computation failed is computed by its next caller", async () => {
  const { backend, counts } = await open({ fails: 2 });
  const model = bert(backend);
  await assert.rejects(model.process(["cat", "cat"]), /no memory/);
  assert.deepEqual([counts.runs, backend.computations.running], [1, 0], "nothing of a call runs after its end");
  const calls = await Promise.allSettled([["cat"], ["two", "cat", "cat"], ["cat"]].map((texts) => model.process(texts)));
  assert.deepEqual(calls.map(({ status }) => status), ["rejected", "fulfilled", "fulfilled"]);
  assert.equal(backend.computations.running, 0);
  assert.deepEqual(row(calls[1].value.outputs[0], 2), row(calls[2].value.outputs[0], 0));
  await backend.dispose();
});

test("equal texts whose embeddings stay private are computed one by one", async () => {
  const { backend } = await open({ sharedTensorConfig: { maxSharedTensorSize: 8 } });
  const { outputs: [all] } = await bert(backend).process(["cat", "cat", "two cats"]);
  assert.deepEqual(row(all, 1), row(all, 0));
  assert.equal(backend.computations.running, 0);
  await backend.dispose();
});

test("a text that is cut is named, and a task without sentences refuses texts", async () => {
  const { backend } = await open();
  const long = Array.from({ length: 2000 }, () => "cat").join(" ");
  const { notices } = await bert(backend).process(["short", long]);
  assert.match(notices.join("; "), /^text 1: truncated to \d+ tokens/);
  const labels = bert(backend, { task: "text-classification" });
  await assert.rejects(labels.process(["one", "two"]), { kind: "Invalid", message: /reads one text; process each by itself/ });
  await assert.rejects(bert(backend).process([]), { kind: "Invalid", message: /a list of 1 to/ });
  await backend.dispose();
});

test("a graph that joins the rows of a batch reads one text at a time", async () => {
  const { backend, counts } = await open();
  const model = bert(backend);
  await model.initialize();
  const loaded = await backend.openModel("bert-base-uncased", {});
  loaded.joinsRows = async () => true;
  await model.process(TEXTS.slice(0, 4));
  assert.equal(counts.runs, 4);
  await backend.dispose();
});

test("a model of the vision family has no texts to embed", async () => {
  const { backend } = await open();
  const vit = createModel(backend, { modelId: "google/vit-base-patch16-224" });
  await assert.rejects(vit.process(["a cat"]), { kind: "Invalid" });
  await backend.dispose();
});

test("a part of the texts is a batch of its own length, padded on the tokenizer's side", () => {
  const array = (numbers, shape) => ({ dtype: "int64", shape, integers: () => BigInt64Array.from(numbers, BigInt), free: () => undefined });
  const tokens = (ids, mask, shape) => ({
    ...{ ids: () => array(ids, shape), mask: () => array(mask, shape), types: () => array(ids.map(() => 0), shape) },
    ...{ positions: () => array(ids.map(() => 0), shape), truncated: () => [0, 1, 0], free: () => undefined },
  });
  const right = new TokenRows(tokens([1, 2, 0, 0, 3, 4, 5, 6, 7, 0, 0, 0], [1, 1, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0], [3, 4]), undefined);
  assert.deepEqual([right.counts, right.truncated, [...right.ids(0)]], [[2, 4, 1], [false, true, false], [1n, 2n]]);
  assert.deepEqual(right.input("text.ids", [2, 0]), { data: BigInt64Array.of(7n, 0n, 1n, 2n), shape: [2, 2], dtype: "int64" });
  assert.deepEqual([[...right.input("text.mask", [2, 0]).data], [...right.mask(2, 2)]], [[1n, 0n, 1n, 1n], [1, 0]]);
  assert.equal(right.input("image.pixels", [0]), undefined);
  const [ids, mask] = [[0, 0, 1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 1, 1, 1, 1]];
  const left = new TokenRows(tokens(ids, mask, [2, 4]), undefined);
  assert.deepEqual([[...left.ids(0)], [...left.input("text.ids", [0]).data]], [[1n, 2n], [1n, 2n]]);
  const fixed = new TokenRows(tokens(ids.slice(0, 4), mask.slice(0, 4), [1, 4]), 4);
  assert.deepEqual([...fixed.input("text.ids", [0]).data], [0n, 0n, 1n, 2n]);
});

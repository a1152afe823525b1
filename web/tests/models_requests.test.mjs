// What models ask of a server, in Node: files are sent once, also by servers that say no version, and a later visit stores what it needs.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { gunzipSync } from "node:zlib";
import { after, before, test } from "node:test";
import * as ort from "onnxruntime-web";
import { createBackend, createModel, MemoryFolders, WeightCache } from "cotensor";
import { newHasher } from "../dist/models/core.js";
import { serve } from "./support/server.mjs";

ort.env.wasm.numThreads = 1;
ort.env.logLevel = "fatal";
const answer = globalThis.fetch;
let server, cache;

before(async () => {
  server = await serve();
  cache = await WeightCache.open({ newHasher, folders: new MemoryFolders("test") });
});
after(() => {
  globalThis.fetch = answer;
  server.close();
});

/** The numbers of downloads of a visit by file, with the kept files of earlier visits. */
async function visit(modelId, use) {
  const backend = await createBackend("cpu", { ort, cache, models: `${server.url}fixtures/tiny/` });
  const before = server.requests.length;
  try {
    await use(createModel(backend, { modelId }));
  } finally {
    await backend.dispose();
  }
  const counts = {};
  for (const { method, path } of server.requests.slice(before)) {
    const file = path.slice(`/fixtures/tiny/${modelId}/`.length);
    if (method === "GET" && /\.onnx(_data)?$|tokenizer.json$|labels.json$/.test(file)) counts[file] = (counts[file] ?? 0) + 1;
  }
  return counts;
}

test("a server that says no version of its files sends each graph once in a visit", async () => {
  globalThis.fetch = async (url, init) => {
    const response = await answer(url, init);
    const headers = new Headers(response.headers);
    for (const name of ["etag", "last-modified"]) headers.delete(name);
    return new Response(init?.method === "HEAD" ? null : response.body, { status: response.status, headers });
  };
  try {
    const use = async (model) => {
      await model.process("a text");
      await model.process("another text");
    };
    for (const which of ["first", "second"]) {
      const counts = await visit("bert", use);
      assert.deepEqual([counts["onnx/model.onnx"], counts["onnx/model.onnx_data"]], [1, 1], `${which} visit`);
    }
  } finally {
    globalThis.fetch = answer;
  }
});

test("graphs, their weights and the scale of similarities are downloaded in the first visit only", async () => {
  const texts = ["a cat", "a dog"];
  const image = Uint8ClampedArray.from({ length: 16 * 16 * 4 }, (_, index) => (index * 7) % 251);
  const probabilities = [];
  const use = async (model) => {
    const { answer } = await model.process({ imageData: image, width: 16, height: 16, texts });
    probabilities.push(JSON.stringify(answer));
  };
  const graphs = (counts) => Object.entries(counts).filter(([file]) => file.startsWith("onnx/"));
  assert.ok(graphs(await visit("siglip-whole", use)).length > 0);
  assert.deepEqual(graphs(await visit("siglip-whole", use)), []);
  assert.equal(probabilities[0], probabilities[1]);
});

test("a graph with the encoder and its head is downloaded once", async () => {
  const form = (path) => readFile(new URL(`../../fixtures/forms/classification/${path}`, import.meta.url));
  const files = { "config.json": await form("config.json"), "onnx/model.onnx": gunzipSync(await form("onnx/model.onnx.gz")) };
  const folder = `${server.url}fixtures/tiny/whole/`;
  let downloads = 0;
  globalThis.fetch = (url, init) => {
    const file = url.startsWith(folder) ? url.slice(folder.length) : undefined;
    if (file === undefined) return answer(url, init);
    const body = files[file];
    if (body === undefined) return answer(file.endsWith(".json") ? `${server.url}fixtures/tiny/bert/${file}` : `${folder}missing.bin`, init);
    if (init?.method !== "HEAD" && file.endsWith(".onnx")) downloads += 1;
    return Promise.resolve(new Response(init?.method === "HEAD" ? null : body, { headers: { etag: `"${file}"`, "content-length": String(body.length) } }));
  };
  try {
    await visit("whole", async (model) => {
      await model.initialize();
      const { task, stages } = await model.process("a text");
      assert.equal(task, "text-classification");
      assert.deepEqual(stages.map(({ role }) => role), ["encoder", "head"]);
    });
    assert.equal(downloads, 1);
  } finally {
    globalThis.fetch = answer;
  }
});

// Models of all tabs in Chromium: one copy in the shared worker, and weights that are downloaded once.
import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { serve } from "./support/server.mjs";
import { launch } from "./support/tabs.mjs";

const ORT = "/ort/ort.webgpu.bundle.min.mjs";
let server, profile;

before(async () => {
  server = await serve();
  profile = await mkdtemp(join(tmpdir(), "cotensor-web-"));
});
after(async () => {
  server?.close();
  if (profile) await rm(profile, { recursive: true, force: true });
});

/** A browser with the same private files each time. */
const visit = async () => (await launch(profile)).context;

/** A tab with a session of the hub. */
async function tab(context, holder) {
  const page = await context.newPage();
  await page.goto(server.url);
  await page.evaluate(
    async ([holder, ort]) => {
      const { connectShared, createVitModel, SharedBackend } = await import("cotensor");
      globalThis.store = await connectShared({ holder, ort });
      globalThis.vit = createVitModel(new SharedBackend(store, { priorityList: ["cpu"], models: "/models/" }), { modelId: "google/vit-base-patch16-224" });
      await vit.initialize();
      globalThis.photo = await (await fetch("/fixtures/media/photo.png")).blob();
    },
    [holder, ORT],
  );
  return page;
}

const embed = (page) =>
  page.evaluate(async () => {
    const { answer, outputs, stages } = await vit.process({ image: photo });
    return { type: answer.type, values: [...outputs[0].values], computed: stages.map(({ computed }) => computed) };
  });

const weights = (requests) => requests.filter(({ method, path }) => method === "GET" && /\.onnx(_data)?$/.test(path)).map(({ path }) => path);

test("tabs share one model, its results, and one download", async () => {
  const context = await visit();
  try {
    const [a, b] = [await tab(context, "a"), await tab(context, "b")];
    const [first, second] = [await embed(a), await embed(b)];
    assert.deepEqual([first.computed, second.computed, first.type], [[true], [false], "embedding"]);
    assert.deepEqual(second.values, first.values);
    assert.equal(new Set(weights(server.requests)).size, weights(server.requests).length, "no file is fetched twice");
    const held = await a.evaluate(async () => {
      const tensor = vit.getSharedTensor("vision_embedding");
      return { holders: await tensor.holders(), elements: (await tensor.read("test")).length, shape: tensor.shape };
    });
    assert.deepEqual(Object.keys(held.holders).map((name) => name.split("/")[0]).sort().filter((name, index, all) => all.indexOf(name) === index), ["a", "b"]);
    assert.deepEqual([held.elements, held.shape], [17 * 32, [1, 17, 32]]);

    // A tab that ends takes its leases along.
    await b.close();
    await a.waitForFunction(async () => Object.keys(await vit.getSharedTensor("vision_embedding").holders()).every((name) => name.startsWith("a")), undefined, { timeout: 30_000 });
    await a.evaluate(() => vit.dispose());
    assert.match(await a.evaluate(() => vit.process("x").catch(({ kind }) => kind)), /Conflict/);
  } finally {
    await context.close();
  }
});

test("a second visit downloads no weights", async () => {
  const before = server.requests.length;
  const context = await visit();
  try {
    assert.deepEqual((await embed(await tab(context, "again"))).computed, [true]);
    assert.deepEqual(weights(server.requests.slice(before)), []);
  } finally {
    await context.close();
  }
});

test("a worker without onnxruntime-web names the option that gives it", async () => {
  const context = await visit();
  try {
    const page = await context.newPage();
    await page.goto(server.url);
    const error = await page.evaluate(async () => {
      const { connectShared, createVitModel, SharedBackend } = await import("cotensor");
      const store = await connectShared({ hub: "none" });
      const vit = createVitModel(new SharedBackend(store, { priorityList: ["cpu"], models: "/models/" }), { modelId: "google/vit-base-patch16-224" });
      return vit.initialize().then(() => "no error", ({ kind, message }) => `${kind}: ${message}`);
    });
    assert.match(error, /^Unsupported: onnxruntime-web.* a worker has no import map: pass the address of the module as the option `ort` of connectShared/);
  } finally {
    await context.close();
  }
});

test("a signal ends the waiting of a tab, and its next call works", async () => {
  const context = await visit();
  try {
    const page = await tab(context, "d");
    const seen = await page.evaluate(async () => {
      const abort = new AbortController();
      const waiting = vit.process({ image: photo }, { signal: abort.signal }).catch(({ name }) => name);
      abort.abort();
      const aborted = [await waiting, await vit.initialize({ signal: abort.signal }).catch(({ name }) => name)];
      const { answer } = await vit.process({ image: photo }, { signal: new AbortController().signal });
      return [...aborted, answer.type, await vit.getSharedTensor("vision_embedding").referenceCount()];
    });
    assert.deepEqual(seen.slice(0, 3), ["AbortError", "AbortError", "embedding"]);
    // The worker's model and the tab hold it; an aborted call holds nothing.
    assert.equal(seen[3], 2);
  } finally {
    await context.close();
  }
});

test("the worker of the site gives a text piece by piece", async () => {
  const context = await visit();
  try {
    const page = await tab(context, "e");
    const seen = await page.evaluate(async () => {
      const { createLlamaModel, SharedBackend } = await import("cotensor");
      const llama = createLlamaModel(new SharedBackend(store, { priorityList: ["cpu"] }), { modelId: "/fixtures/tiny/llama", maxNewTokens: 12 });
      const pieces = [];
      const { text } = await llama.process("a photo of a cat", { onText: (piece) => pieces.push(piece) });
      return { mode: store.connection.mode, pieces, text };
    });
    assert.deepEqual([seen.mode, seen.pieces.join("")], ["shared", seen.text]);
    assert.ok(seen.pieces.length > 1, JSON.stringify(seen.pieces));
  } finally {
    await context.close();
  }
});

test("wrong models and wrong inputs are refused in the words of the page's own models", async () => {
  const context = await visit();
  try {
    const page = await tab(context, "c");
    const refusals = await page.evaluate(async () => {
      const { createBertModel, SharedBackend } = await import("cotensor");
      const backend = new SharedBackend(store, { priorityList: ["cpu"], models: "/models/" });
      const refusal = (call) => call.then(() => "nothing", ({ kind, message }) => `${kind}: ${message}`);
      const other = createBertModel(backend, { modelId: "google/vit-base-patch16-224" });
      const missing = createBertModel(backend, { modelId: "nobody/nothing" });
      return Promise.all([refusal(other.initialize()), refusal(missing.initialize()), refusal(vit.process("a text")), refusal(vit.process({ image: new Uint8Array([1, 2, 3]) }))]);
    });
    assert.match(refusals[0], /^Invalid: modelId: .* is a model of the family vit, not bert/);
    assert.match(refusals[1], /^NotFound: modelId: .*nobody\/nothing\/ has no config.json/);
    assert.match(refusals[2], /^Invalid: task: no task of google\/vit-base-patch16-224 is meant by text/);
    assert.match(refusals[3], /^(Corrupt|Invalid): .*image/);
  } finally {
    await context.close();
  }
});

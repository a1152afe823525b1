// The documents' programs in Chromium, as written after their import line. `setup` makes what a program uses without making it itself.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import { openBrowser } from "./support/browsers.mjs";

let site;
before(async () => (site = await openBrowser("chromium")));
after(() => site?.close());

const GPU = `const hardware = await createWebGPUBackend({ models: "/models/" });`;
/** The software adapter compiles the shaders of each model for seconds. */
const HARDWARE = `const hardware = await createCpuBackend({ models: "/models/" });`;
const PHOTO = `const photo = await (await fetch("/fixtures/media/photo.png")).blob();`;
const VIT = `const vitModel = createVitModel(hardware, { modelId: "google/vit-base-patch16-224" }); await vitModel.initialize();`;
const CLIP = `const clipModel = createClipModel(hardware, { modelId: "openai/clip-vit-base-patch16" }); await clipModel.initialize();`;
const BERT = `const bertModel = createBertModel(hardware, { modelId: "bert-base-uncased" }); await bertModel.initialize();`;
const WHISPER = `const whisperModel = createWhisperModel(hardware, { modelId: "openai/whisper-tiny", maxNewTokens: 4 }); await whisperModel.initialize();`;
/** Pixels of a canvas, as pages have them. */
const PIXELS = `const preprocessedImage = new Uint8ClampedArray(224 * 224 * 4).map((_, index) => (index * 31) % 256);`;

/** Runs a program in the page, after `setup`. `then` gives what the test looks at. */
async function run(file, setup, then) {
  const program = await readFile(new URL(`snippets/${file}.js`, import.meta.url), "utf8");
  const text = `(async () => {
    const cotensor = await import("cotensor");
    const scope = { ...cotensor };
    const AsyncFunction = (async () => {}).constructor;
    const lines = [];
    const log = console.log;
    console.log = (line) => lines.push(typeof line === "string" ? line : JSON.stringify(line));
    try {
      return await new AsyncFunction(...Object.keys(scope), "lines", ${JSON.stringify(`${setup}\nreturn await (async () => {\n${program}\n${then}\n})();`)})(...Object.values(scope), lines);
    } finally {
      console.log = log;
    }
  })()`;
  return site.page.evaluate(text);
}

test("creating shared tensors", async () => {
  const seen = await run("creating_shared_tensors", GPU + PIXELS, `return [sharedTensor.holders, sharedTensor.kind, sharedTensor.tensor.dimensions, result.answer.type];`);
  assert.deepEqual(seen, [{ "google/vit-base-patch16-224": 1 }, "vision_embedding", [1, 17, 32], "embedding"]);
});

test("using shared tensors: a tensor of another space is refused by name", async () => {
  const setup = `${HARDWARE}${PHOTO}${VIT} await vitModel.process({ image: photo }); const sharedTensor = vitModel.getSharedTensor("vision_embedding");`;
  await assert.rejects(run("using_shared_tensors", setup, ""), /the tensor has space [0-9a-f]{12}, vision_tower of openai\/clip-vit-base-patch16 has space [0-9a-f]{12}.*adapter/);
});

test("using shared tensors: a tensor of the same space replaces the encoder", async () => {
  const setup = `${HARDWARE}${PHOTO} const first = createClipModel(hardware, { modelId: "/fixtures/tiny/clip", task: "image-embedding" });
    await first.process({ image: photo }); const sharedTensor = first.getSharedTensor("vision_text_joint");`;
  const seen = await run("using_shared_tensors", setup, `return [result.answer.texts.map(([text]) => text), result.stages.map(({ role }) => role)];`);
  assert.deepEqual(seen, [["a photo of a cat"], ["text_tower"]]);
});

test("lifecycle: the counts in the comments", async () => {
  const lines = (await readFile(new URL("snippets/lifecycle.js", import.meta.url), "utf8")).match(/Reference count: \d/g);
  const setup = `${HARDWARE}${PHOTO}${VIT}${CLIP} await vitModel.process({ image: photo });`;
  const counts = await run("lifecycle", `${setup}
    const counted = []; const use = clipModel.useSharedTensor.bind(clipModel); const release = clipModel.releaseSharedTensor.bind(clipModel);
    clipModel.useSharedTensor = (tensor) => (use(tensor), counted.push(tensor.getReferenceCount()));
    clipModel.releaseSharedTensor = (tensor) => (release(tensor), counted.push(tensor.getReferenceCount()));`, `return [...counted, sharedTensor.getReferenceCount()];`);
  assert.deepEqual(counts, lines.map((line) => Number(line.at(-1))));
});

test("vision and language: tensors of other encoders are refused by name", async () => {
  const setup = `${HARDWARE}${PHOTO}${VIT}${BERT}${CLIP} const multimodalModel = clipModel; const imageInput = { image: photo }; const textInput = "a photo of a cat";`;
  await assert.rejects(run("vision_language", setup, ""), /the tensor has space [0-9a-f]{12}, vision_tower of openai\/clip-vit-base-patch16 has space [0-9a-f]{12}/);
});

test("cascading models: the speech model's tensor for a second task", async () => {
  const setup = `${HARDWARE}${WHISPER} const sentimentModel = createWhisperModel(hardware, { modelId: "/fixtures/tiny/whisper", task: "audio-classification", head: "head" });
    const audioInput = { audio: await (await fetch("/fixtures/media/speech.wav")).blob() };`;
  const seen = await run("cascading", setup, `return [typeof transcription.text, sentimentResult.answer.type, sentimentResult.stages.map(({ role }) => role), sentimentResult.notices];`);
  assert.deepEqual(seen.slice(0, 3), ["string", "label", ["head"]]);
  assert.match(seen[3].join(), /reads no text/);
});

test("streaming: chunks, results while it plays, the rest at the end", async () => {
  const setup = `${HARDWARE}${WHISPER}${BERT} const shown = []; const updateUI = (result) => shown.push(result);`;
  const seen = await run("streaming", setup, `
    const rest = await streamingProcessor.run(Array.from({ length: 10 }, () => new Float32Array(1600).fill(0.01)));
    return [shown.length, rest.segments.map(({ start, end, text, result }) => [start, end, typeof text, result?.answer.type])];`);
  assert.equal(seen[0], 10);
  assert.deepEqual(seen[1], [[0, 1, "string", "embedding"]]);
});

test("debugging: diagnostics and counts", async () => {
  const setup = `${HARDWARE}${PHOTO}${VIT} await vitModel.process({ image: photo }); const sharedTensor = vitModel.getSharedTensor("vision_embedding");`;
  const seen = await run("debugging", setup, `SharedTensor.setVerboseLogging(false); return [diagnostics.tensors.filter(({ holders, kind }) => kind === "vision_embedding" && Object.keys(holders).length > 0).map(({ holders }) => holders), lines.at(-1)];`);
  assert.deepEqual(seen, [[{ "google/vit-base-patch16-224": 1 }], "Reference count: 1"]);
});

test("advanced configuration: other kinds stay private", async () => {
  const seen = await run("advanced_configuration", HARDWARE + PHOTO, `
    const clipModel = createClipModel(hardware, { ...config, modelId: "openai/clip-vit-base-patch16", task: "image-embedding" });
    for (const model of [vitModel, clipModel]) await model.process({ image: photo });
    const again = [await vitModel.process({ image: photo }), await clipModel.process({ image: photo })];
    const { refused } = hardware.store.getStats();
    const other = (() => { try { createVitModel(hardware, { modelId: "x", sharedTensorConfig: {} }); } catch ({ kind }) { return kind; } })();
    return [again.map(({ stages }) => stages.at(-1).computed), refused, other];`);
  assert.deepEqual(seen[0], [false, true], "a kind that is not allowed is computed again");
  assert.ok(Object.values(seen[1]).reduce((sum, count) => sum + count, 0) > 0);
  assert.equal(seen[2], "Conflict");
});

test("ViT and BERT in one program", async () => {
  const program = await readFile(new URL("snippets/vit_and_bert.js", import.meta.url), "utf8");
  const seen = await site.page.evaluate(`(async () => {
    const { setBackendDefaults } = await import("cotensor");
    setBackendDefaults({ models: "/models/" });
    const text = ${JSON.stringify(program)} + "\\nexport { runMultimodalAnalysis };";
    const { runMultimodalAnalysis } = await import(URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
    const found = await runMultimodalAnalysis(new Uint8ClampedArray(224 * 224 * 4).fill(100), "a photo of a cat");
    return [found.visionResult.answer.type, found.textResult.answer.type, found.memorySaved];
  })()`);
  assert.deepEqual(seen, ["embedding", "embedding", (17 * 32 * 4) / 2 ** 20]);
});

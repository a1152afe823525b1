// Rerankers, sounds, prompts and similarities in Chromium and in Firefox, on the GPU and on the CPU, beside the answers of the Rust library.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import { hasWebGpu, openBrowser, withBackend } from "./support/browsers.mjs";
import { relativeError } from "./support/safetensors.mjs";

const BROWSERS = ["chromium", "firefox"];
const DEVICES = ["cpu", "webgpu"];
/** The largest difference from the Rust library, over the deviation of its numbers; of a few numbers, over the largest one. */
const ERROR_MAX = 1e-4;
const FEW = 8;
/** Numbers that are equal on all devices. */
const EXACT = ["tokens", "truncated"];
const TEXTS = ["a photo of a cat", "a photo of a dog", "a diagram"];
const ANSWERS = JSON.parse(await readFile(new URL("../../protocol/answers.json", import.meta.url), "utf8"));

/** The models below `fixtures/`, by name in protocol/answers.json, with their inputs, options and answers. */
const CASES = {
  roberta: { model: "relatives/roberta", input: { text: TEXTS[0], texts: TEXTS }, type: "scores" },
  reranker: { model: "embedders/reranker", input: { text: TEXTS[0], texts: TEXTS }, type: "scores" },
  nomic: { model: "embedders/nomic", input: { text: TEXTS[0] }, options: { promptName: "query" }, type: "embedding" },
  "jina-v3": { model: "embedders/jina-v3", input: { text: TEXTS[0] }, options: { promptName: "query" }, type: "embedding" },
  siglip: { model: "tiny/siglip", input: { image: "photo.png", texts: TEXTS }, type: "ranking" },
  "whisper-language": { model: "sounds/whisper", input: { audio: "speech.wav" }, options: { task: "language-identification" }, type: "language" },
  "whisper-long": { model: "sounds/whisper", input: { audio: "speech.wav", from: 20_000, to: 60_000 }, type: "transcript" },
  "whisper-long-file": { model: "sounds/whisper", input: { audio: "speech.wav", from: 20_000, to: 60_000, isFile: true }, type: "transcript", as: "whisper-long" },
  wav2vec2: { model: "sounds/wav2vec2-ctc", input: { audio: "speech.wav", from: 20_000, to: 28_000 }, type: "transcript" },
  "wav2vec2-classification": { model: "sounds/wav2vec2-classification", input: { audio: "speech.wav", from: 20_000, to: 28_000 }, type: "label" },
  clap: { model: "sounds/clap-even", input: { audio: "speech.wav", texts: TEXTS }, type: "ranking" },
  "clap-audio": { model: "sounds/clap-even", input: { audio: "speech.wav" }, type: "embedding" },
  "clap-text": { model: "sounds/clap-even", input: { text: TEXTS[0] }, type: "embedding" },
};
const sites = {};

before(async () => {
  for (const name of BROWSERS) sites[name] = await openBrowser(name);
});
after(async () => {
  for (const site of Object.values(sites)) await site.close();
});

function errorOf(values, expected) {
  if (expected.length > FEW) return relativeError(values, expected);
  assert.equal(values.length, expected.length);
  return Math.max(...expected.map((each, index) => Math.abs(values[index] - each))) / Math.max(...expected.map(Math.abs));
}

/** Runs cases in a page, each one twice. */
async function answersOf({ backend, createModel }, cases) {
  const media = async (name) => new Uint8Array(await (await fetch(`/fixtures/media/${name}`)).arrayBuffer());
  const results = {};
  for (const [name, { model: modelId, input: { image, audio, from, to, isFile, ...texts }, options }] of Object.entries(cases)) {
    const input = { ...texts };
    if (image) input.image = await media(image);
    if (audio) input.audio = await media(audio);
    if (isFile) {
      // A file of a part of the samples: its header has 44 bytes and states the lengths behind them.
      const file = new Uint8Array([...input.audio.slice(0, 44), ...input.audio.slice(44 + 2 * from, 44 + 2 * to)]);
      const header = new DataView(file.buffer);
      header.setUint32(4, file.length - 8, true);
      header.setUint32(40, file.length - 44, true);
      input.audio = file;
      // A part of the file's samples, which have 16 bits.
    } else if (to) Object.assign(input, { audio: Float32Array.from(new Int16Array(input.audio.slice(44).buffer, 2 * from, to - from), (sample) => sample / 32768), samplingRate: 8000 });
    const model = createModel(backend, { modelId: `/unpacked/${modelId}`, ...options });
    const pieces = [];
    const { answer, outputs } = await model.process(input, name.startsWith("whisper-long") ? { onText: (piece) => pieces.push(piece) } : {});
    const again = await model.process(input);
    results[name] = { answer, pieces, outputs: Object.fromEntries(outputs.map(({ name, values }) => [name, [...values]])), computed: again.stages.some(({ role, computed }) => computed && role !== "decoder") };
    await model.dispose();
  }
  return results;
}

for (const browser of BROWSERS) {
  for (const device of DEVICES) {
    test(`${browser}, ${device}: answers are those of the Rust library, and a second call computes nothing`, async (context) => {
      const site = sites[browser];
      if (device === "webgpu" && !(await hasWebGpu(site.page, context))) return;
      const seen = await withBackend(site, device, answersOf, CASES);
      for (const [name, { answer, pieces, outputs, computed }] of Object.entries(seen)) {
        const expected = ANSWERS[CASES[name].as ?? name];
        assert.deepEqual([answer.type, Object.keys(outputs).sort(), computed], [CASES[name].type, Object.keys(expected).sort(), false], name);
        if (pieces.length > 0) assert.equal(pieces.join("").trim(), answer.text, name);
        for (const [output, values] of Object.entries(outputs)) {
          if (EXACT.includes(output)) assert.deepEqual(values, expected[output], `${name} ${output}`);
          else assert.ok(errorOf(values, expected[output]) <= ERROR_MAX, `${name} ${output}: ${errorOf(values, expected[output])}`);
        }
      }
      for (const name of ["whisper-long", "whisper-long-file"]) assert.ok(seen[name].pieces.length > 1, name);
      for (const name of ["roberta", "reranker"]) {
        const { answer: { texts }, outputs: { scores } } = seen[name];
        const given = texts.map(([, score]) => Math.fround(score));
        assert.deepEqual(given, [...scores].sort((a, b) => b - a), name);
        assert.deepEqual(texts.map(([text]) => scores[TEXTS.indexOf(text)]), given, name);
      }
    });
  }
}

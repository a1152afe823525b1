// Spaces, hashes, identities and keys equal those of the Rust library, which wrote protocol/keys.json.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { AudioProcessor, Generation, ImageProcessor, TextProcessor, contentHash, hashes, keyOnce, loadModels, newHasher, stageKey as stageKeyOfJson } from "../dist/models/core.js";
import { openTiny } from "./support/tiny.mjs";

await loadModels();
const golden = JSON.parse(await readFile(new URL("../../protocol/keys.json", import.meta.url), "utf8"));
const engine = { engine: "golden", version: "1.2" };
const fromHex = (hex) => Uint8Array.from(hex.match(/../g) ?? [], (byte) => parseInt(byte, 16));

test("identities of arrays and hashes of content are equal", () => {
  for (const { dtype, shape, bytes, identity } of golden.arrays) assert.equal(hashes.identity(dtype, shape, fromHex(bytes)), identity);
  const content = new TextEncoder().encode("cotensor");
  assert.equal(contentHash(content), golden.content_of_cotensor);
  const hasher = newHasher();
  for (const byte of content) hasher.update(Uint8Array.of(byte));
  assert.equal(hasher.digest(), golden.content_of_cotensor);
  assert.throws(() => hashes.identity("float32", [3], new Uint8Array(8)), { name: "CotensorError", kind: "Invalid" });
  assert.throws(() => hashes.identity("float33", [2], new Uint8Array(8)), { kind: "Invalid", message: /dtype/ });
});

for (const [name, expected] of Object.entries(golden.models)) {
  test(`spaces, weights and keys of ${name} are equal`, async () => {
    const model = await openTiny(name);
    const fingerprints = {
      text: () => new TextProcessor(model.files, model.family).fingerprint,
      image: () => new ImageProcessor(model.files, model.family).fingerprint,
      audio: () => new AudioProcessor(model.files, model.family).fingerprint,
    };
    const found = [];
    for (const { role, file, media } of model.description.stages) {
      const graph = await model.graph(file);
      const stages = graph.stages(model.family, role, media.map((medium) => fingerprints[medium]()));
      for (const stage of stages) found.push(described(JSON.parse(stage.describe()), found.at(-1)));
      for (const each of [...stages, graph]) each.free();
    }
    assert.deepEqual(found, expected);
  });
}

test("texts are decoded to equal tokens", async () => {
  const { files, family } = await openTiny("whisper");
  const generation = new Generation(files, family, "transcription");
  const { vocabulary, end, end_step, texts } = golden.decodings;
  const spoken = JSON.parse(generation.spokenLanguage(Float32Array.from({ length: vocabulary }, (_, token) => token)));
  // Here the score of a language is its token.
  const [, language] = spoken.scores;
  assert.deepEqual([generation.hasLanguages, spoken.token], [true, Math.max(...spoken.scores)]);
  for (const { request, timestamps, prompt, tokens, cut, settings } of texts) {
    assert.deepEqual([...generation.speechPrompt(language, "transcribe", timestamps)], prompt);
    const decoding = generation.decode(Uint32Array.from(prompt), JSON.stringify(request), timestamps);
    assert.equal(decoding.settingsHash(), settings);
    for (let step = 0; !decoding.isDone; step++) {
      const scores = Float32Array.from({ length: vocabulary }, (_, token) => ((token * 7919 + step * 104_729) % 2048) / 128);
      if (step === end_step) scores[end] = 64;
      const next = decoding.next(scores);
      assert.equal(next, tokens[step]);
    }
    assert.deepEqual([[...decoding.tokens()], decoding.isCut], [tokens, cut]);
    assert.throws(() => decoding.next(new Float32Array(vocabulary)), { kind: "Conflict" });
    decoding.free();
  }
  const start = Uint32Array.of(generation.start());
  const broken = generation.decode(start, '{"user": "u"}', false);
  assert.throws(() => broken.next(new Float32Array(vocabulary).fill(NaN)), { kind: "Engine", message: /logit 0/ });
  assert.throws(() => generation.decode(start, '{"user": "u", "max_new_tokens": 0}', false), { kind: "Invalid", message: /u.max_new_tokens/ });
  assert.throws(() => generation.decode(start, '{"user": "u", "beams": 2}', false), { kind: "Invalid", message: /beams/ });
});

/** The stage as the Rust test describes it. `before` is the stage before it in the list. */
function described({ role, kind, space, precision, continues, inputs, outputs, weights }, before) {
  const [names, results] = [inputs, outputs].map((ports) => ports.map((port) => port.name));
  const identities = golden.arrays.map(({ identity }) => identity);
  const bound = names.map((input, index) => ({ name: input, identity: identities[index % identities.length] }));
  const stage = { ...engine, space, precision };
  const request = { stage, inputs: Object.fromEntries(bound.map(({ name, identity }) => [name, identity])), outputs: results.slice(0, 1) };
  const of = continues === null ? request : { ...request, before: { ...engine, precision: before.precision } };
  const key = stageKeyOfJson(JSON.stringify(of));
  // The form that stages use.
  if (continues === null) assert.equal(hashes.stageKey({ ...stage, variant: "", inputs: bound, outputs: results.slice(0, 1) }), key);
  return {
    ...{ role, kind, space, precision, continues, inputs: names, outputs: results },
    weights: weights.map(({ hash, bytes }) => [hash, bytes]),
    ...{ key, output: hashes.provenance(key, 0), key_once: keyOnce(JSON.stringify({ ...stage, variant: "kernels" }), "decoding", identities) },
  };
}

// Spaces, hashes, identities and keys equal those of the Rust library, which wrote protocol/keys.json.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { AudioProcessor, Generation, ImageProcessor, TextProcessor, contentHash, hashes, keyOnce, loadModels, newHasher, runTask, stageKey as stageKeyOfJson, takeArray } from "../dist/models/core.js";
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
  const text = new TextProcessor(files, family);
  const { vocabulary, end, end_step, texts } = golden.decodings;
  const spoken = await runTask(generation.spokenLanguage(decoder(() => Float32Array.from({ length: vocabulary }, (_, token) => token))));
  // Here the score of a language is its token.
  const [, language] = spoken.scores;
  assert.deepEqual([generation.hasLanguages, spoken.token], [true, Math.max(...spoken.scores)]);
  const scoresOf = (step) => {
    const scores = Float32Array.from({ length: vocabulary }, (_, token) => ((token * 7919 + step * 104_729) % 2048) / 128);
    if (step === end_step) scores[end] = 64;
    return scores;
  };
  const user = ({ user: name, ...options }) => JSON.stringify({ name, model: "m", task: "transcription", ...options });
  for (const { request, timestamps, prompt, tokens, cut, settings } of texts) {
    assert.deepEqual([...generation.speechPrompt(language, "transcribe", timestamps)], prompt);
    const decoding = generation.decode(text, Uint32Array.from(prompt), false, user(request), timestamps);
    assert.equal(decoding.settingsHash(), settings);
    const host = decoder(scoresOf);
    const written = await runTask(decoding.run(host));
    assert.deepEqual([written, decoding.cutNotice(written.length) !== undefined], [tokens, cut]);
    // Each run reads the tokens that the run before chose.
    assert.deepEqual(host.read, [prompt, ...tokens.slice(0, host.read.length - 1).map((token) => [token])]);
    const given = [...host.pieces, ...decoding.rest(new Uint32Array())].join("");
    assert.equal(given.trim(), text.transcript(Uint32Array.from(written)));
    assert.deepEqual(decoding.rest(Uint32Array.from(written)), [], "the text has ended");
    decoding.free();
    // A caller that finds the tokens gets the same text.
    const found = generation.decode(text, Uint32Array.from(prompt), false, user(request), timestamps);
    assert.equal(found.rest(Uint32Array.from(written)).join(""), given);
  }
  const start = Uint32Array.of(generation.start());
  const plain = () => generation.decode(text, start, false, user({ user: "u" }), false);
  await assert.rejects(runTask(plain().run(decoder(() => new Float32Array(vocabulary).fill(NaN)))), { kind: "Engine" });
  await assert.rejects(runTask(plain().run(decoder(() => Promise.reject(new Error("aborted"))))), { message: "aborted" }, "an error of the page is thrown as it is");
  const task = plain().run(decoder(scoresOf));
  task.poll(undefined);
  task.free();
  assert.throws(() => generation.decode(text, start, false, user({ user: "u", max_new_tokens: 0 }), false), { kind: "Invalid", message: /u.max_new_tokens/ });
  assert.throws(() => generation.decode(text, start, false, user({ user: "u", beams: 2 }), false), { kind: "Invalid", message: /beams/ });
});

/** A host of Whisper's decoder whose graph gives `scores` of each step. */
function decoder(scores) {
  const port = (name, dtype, shape) => ({ name, dtype, shape });
  const cache = (name) => port(name, "float32", ["batch", 2, "rows", 16]);
  const inputs = [port("input_ids", "int64", ["batch", "tokens"])];
  const outputs = [port("logits", "float32", ["batch", "tokens", "vocabulary"]), cache("present.0.decoder.key")];
  const graphs = [
    { role: "decoder", inputs, outputs },
    { role: "decoder_with_past", inputs: [...inputs, cache("past_key_values.0.decoder.key")], outputs },
  ];
  const [read, pieces] = [[], []];
  return {
    read,
    pieces,
    graphs: () => JSON.stringify(graphs),
    value: () => undefined,
    async run(isFirst, names, values) {
      assert.deepEqual([isFirst, names], [read.length === 0, ["input_ids"]]);
      read.push([...takeArray(values[0]).data].map(Number));
      return scores(read.length - 1);
    },
    async text(piece) {
      pieces.push(piece);
    },
  };
}

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

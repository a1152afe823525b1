// Spaces, hashes, identities and keys equal those of the Rust library, which wrote protocol/keys.json.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { AudioProcessor, Generation, ImageProcessor, SpeechWindows, TextProcessor, contentHash, hashes, keyOnce, loadModels, newHasher, runTask, stageKey as stageKeyOfJson, takeArray } from "../dist/models/core.js";
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
  const [text, audio] = [new TextProcessor(files, family), new AudioProcessor(files, family)];
  const { vocabulary, end, end_step, texts } = golden.decodings;
  const scoresOf = (step) => {
    const scores = Float32Array.from({ length: vocabulary }, (_, token) => ((token * 7919 + step * 104_729) % 2048) / 128);
    if (step === end_step) scores[end] = 64;
    return scores;
  };
  const user = ({ user: name, ...options }) => JSON.stringify({ name, model: "m", task: "transcription", ...options });
  const run = (request, host, windows) => runTask(generation.answer(text, user(request), undefined, windows, host));
  for (const { request, timestamps, prompt, tokens, cut, settings } of texts) {
    const spoken = () => Float32Array.from({ length: vocabulary }, (_, token) => Number(token === prompt[1]));
    const host = stages(spoken, scoresOf);
    // Windows of a longer sound have timestamps. The encoder of the host has no rows that fit one, so that the first is the last.
    const windows = timestamps ? SpeechWindows.ofSamples(audio, new Float32Array(40 * 16_000), 16_000) : undefined;
    const answered = run(request, host, windows);
    const result = timestamps ? await assert.rejects(answered, { kind: "Invalid", message: /encoder/ }) : await answered;
    const [{ read, ...decoded }] = host.decodings;
    assert.deepEqual(decoded, { settings, tokens });
    // Each run reads the tokens that the run before chose.
    assert.deepEqual(read, [prompt, ...tokens.slice(0, read.length - 1).map((token) => [token])]);
    assert.equal(host.notices.some((notice) => /may be incomplete/.test(notice)), cut);
    if (timestamps) continue;
    const [answer, outputs] = result;
    assert.deepEqual([answer.type, answer.tokens, outputs[0].values], ["transcript", tokens.length, tokens]);
    assert.equal(host.pieces.join("").trim(), answer.text);
    // A caller that finds the tokens gets the same text.
    const found = stages(spoken, scoresOf, tokens);
    assert.deepEqual((await run(request, found))[0], answer);
    assert.equal(found.pieces.join(""), host.pieces.join(""));
  }
  const plain = (request, language) => run({ user: "u", ...request }, stages(language, scoresOf));
  await assert.rejects(plain({}, () => new Float32Array(vocabulary).fill(NaN)), { kind: "Engine" });
  await assert.rejects(plain({}, () => Promise.reject(new Error("aborted"))), { message: "aborted" }, "an error of the page is thrown as it is");
  await assert.rejects(plain({ max_new_tokens: 0 }, scoresOf), { kind: "Invalid", message: /u.max_new_tokens/ });
  assert.throws(() => plain({ beams: 2 }, scoresOf), { kind: "Invalid", message: /beams/ });
  const task = generation.answer(text, user({ user: "u" }), undefined, undefined, stages(scoresOf, scoresOf));
  task.poll(undefined);
  task.free();
});

/** A host of Whisper's stages. `language` gives the scores after the start token, and `scores` those of each step, unless the tokens are `known`. */
function stages(language, scores, known) {
  const [pieces, notices, decodings] = [[], [], []];
  return {
    ...{ pieces, notices, decodings },
    setPart: (features) => features.free(),
    encode: async () => Uint32Array.of(1, 0, 8),
    decoder: async () => decoder(language, pieces),
    async decode(decoding) {
      const [graphs, settings] = [decoder(scores, pieces), decoding.settingsHash()];
      const tokens = known ?? (await runTask(decoding.run(graphs)));
      decoding.free();
      decodings.push({ read: graphs.read, settings, tokens });
      return Uint32Array.from(tokens);
    },
    text: async (piece) => void pieces.push(piece),
    notice: (notice) => void notices.push(notice),
    turn: async () => undefined,
  };
}

/** A host of Whisper's decoder whose graph gives `scores` of each step. */
function decoder(scores, pieces) {
  const port = (name, dtype, shape) => ({ name, dtype, shape });
  const cache = (name) => port(name, "float32", ["batch", 2, "rows", 16]);
  const inputs = [port("input_ids", "int64", ["batch", "tokens"])];
  const outputs = [port("logits", "float32", ["batch", "tokens", "vocabulary"]), cache("present.0.decoder.key")];
  const graphs = [
    { role: "decoder", inputs, outputs },
    { role: "decoder_with_past", inputs: [...inputs, cache("past_key_values.0.decoder.key")], outputs },
  ];
  const read = [];
  return {
    read,
    graphs: () => JSON.stringify(graphs),
    value: () => undefined,
    async run(isFirst, names, values) {
      assert.deepEqual([isFirst, names], [read.length === 0, ["input_ids"]]);
      read.push([...takeArray(values[0]).data].map(Number));
      return scores(read.length - 1);
    },
    text: async (piece) => void pieces.push(piece),
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

// Preprocessing against what transformers makes of the same inputs, with the tolerances of the Rust library's tests.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { AudioProcessor, ConfigFiles, Generation, ImageProcessor, ModelFamily, SentencePooling, TextProcessor, hashes, imageSize, loadModels, soundLength, takeArray } from "../dist/models/core.js";
import init from "../dist/models/cotensor_models.js";
import { readSafetensors } from "./support/safetensors.mjs";
import { fixtures, openTiny } from "./support/tiny.mjs";

await loadModels();
const bert = new ModelFamily('{"model_type": "bert"}', []);
const read = async (path) => new Uint8Array(await readFile(new URL(path, fixtures)));
const cases = async (model) => JSON.parse(await model.text("preprocess.json"));
const numbers = (array) => Array.from(array, Number);
const imageFile = (path) => read(path.startsWith("../../") ? path.slice(6) : path.replace("..", "tiny"));

/** The arrays of a batch, which is freed. */
function rows(batch) {
  const taken = { ids: takeArray(batch.ids()), mask: takeArray(batch.mask()), types: takeArray(batch.types()), truncated: [...batch.truncated()] };
  batch.free();
  return taken;
}

test("tokens are equal", async () => {
  let checked = 0;
  for (const name of ["bert", "clip", "whisper"]) {
    const model = await openTiny(name);
    const processor = new TextProcessor(model.files, model.family);
    const { cases: list, batch } = (await cases(model)).text;
    for (const { text, input_ids, decoded } of list) {
      if (input_ids.length === 0) continue;
      const { ids } = rows(processor.encode([text]));
      assert.deepEqual(numbers(ids.data), input_ids, `${name}: ${text}`);
      assert.equal(processor.decode(Uint32Array.from(input_ids)), decoded, `${name}: ${text}`);
      checked += 1;
    }
    const { ids, mask, truncated } = rows(processor.encode(batch.texts.map((index) => list[index].text)));
    assert.deepEqual(numbers(ids.data), batch.input_ids.flat(), name);
    assert.deepEqual([ids.shape, numbers(mask.data)], [[batch.texts.length, batch.input_ids[0].length], batch.attention_mask.flat()], name);
    assert.ok(truncated.includes(1) || name === "whisper");
  }
  assert.ok(checked > 30);
});

test("pairs of texts are equal", async () => {
  const model = await openTiny("bert");
  const processor = new TextProcessor(model.files, model.family);
  const { pairs, text } = await cases(model);
  for (const { texts, input_ids, token_type_ids } of pairs) {
    const [first, second] = texts.map((index) => text.cases[index].text);
    const { ids, types } = rows(processor.encodePairs([first], [second]));
    assert.deepEqual([numbers(ids.data), numbers(types.data)], [input_ids, token_type_ids]);
  }
  assert.ok(pairs.length >= 4);
  assert.throws(() => processor.encodePairs(["a"], []), { kind: "Invalid", message: /texts/ });
  assert.throws(() => processor.encode([]), { kind: "Invalid", message: /texts/ });
});

test("images equal those of Pillow", async () => {
  let checked = 0;
  for (const name of ["vit", "clip"]) {
    const model = await openTiny(name);
    const tensors = readSafetensors(await model.bytes("preprocess.safetensors"));
    const { image_std } = JSON.parse(await model.text("preprocessor_config.json"));
    const processor = new ImageProcessor(model.files, model.family);
    for (const { image, size, tensor } of (await cases(model)).image.cases) {
      if (size !== 32) continue;
      const { data, shape } = takeArray(processor.process(await imageFile(image)));
      assert.deepEqual(shape, [1, 3, 32, 32]);
      near(data, tensors[tensor].data, (difference, index) => difference * image_std[Math.floor(index / 1024)] * 255, `${name} ${tensor}`);
      checked += 1;
    }
  }
  assert.equal(checked, 8);
});

test("processors of every class equal those of transformers", async () => {
  const { cases: list } = JSON.parse(await readFile(new URL("tiny/processors/preprocess.json", fixtures), "utf8"));
  const tensors = readSafetensors(await read("tiny/processors/preprocess.safetensors"));
  const family = new ModelFamily('{"model_type": "vit"}', []);
  const classes = new Set();
  let padded = 0;
  for (const { tensor, config, image, mask } of list) {
    const files = new ConfigFiles();
    files.set("preprocessor_config.json", JSON.stringify(config));
    const processor = new ImageProcessor(files, family);
    const file = await imageFile(image);
    const { data, shape } = takeArray(processor.process(file));
    assert.deepEqual(shape.slice(1), tensors[tensor].shape, tensor);
    // A level of 255 is at most this far from the next: the smallest deviation of a channel is 0.224.
    near(data, tensors[tensor].data, (difference) => difference * 255 * 0.224, tensor);
    if (mask) {
      const found = takeArray(processor.mask(...imageSize(file), new Uint32Array()));
      assert.deepEqual([found.shape, numbers(found.data)], [[1, ...shape.slice(2)], numbers(tensors[mask].data)], tensor);
      padded += numbers(found.data).includes(0) ? 1 : 0;
    }
    classes.add(config.image_processor_type);
  }
  assert.deepEqual([classes.size, padded], [6, 2]);
});

test("pixels give the input of the file that has them", async () => {
  const model = await openTiny("vit");
  const processor = new ImageProcessor(model.files, model.family);
  const [width, height] = [5, 3];
  const rgba = Uint8Array.from({ length: width * height * 4 }, (_, index) => (index * 37) % 256);
  const pixels = takeArray(processor.processPixels(rgba, width, height));
  assert.deepEqual(pixels, takeArray(processor.process(bitmap(rgba, width, height))));
  // Opacity does not count.
  const opaque = rgba.map((level, index) => (index % 4 === 3 ? 255 : level));
  assert.deepEqual(takeArray(processor.processPixels(opaque, width, height)), pixels);
  for (const [bytes, w, h] of [[59, 5, 3], [60, 3, 3], [0, 0, 0], [60, 5, 4_000_000]]) {
    assert.throws(() => processor.processPixels(new Uint8Array(bytes), w, h), { kind: "Invalid", message: /image/ });
  }
  assert.throws(() => processor.process(new Uint8Array([1, 2, 3])), { kind: "Corrupt", message: /image/ });
});

test("features of sounds are equal", async () => {
  const model = await openTiny("whisper");
  const tensors = readSafetensors(await model.bytes("preprocess.safetensors"));
  const processor = new AudioProcessor(model.files, model.family);
  assert.deepEqual([processor.sampleRate, processor.seconds], [16_000, 30]);
  const clip = samplesOfWav(await read("media/speech.wav"));
  // Doubled to 16 kHz as the reference was: every sample, then the mean of it and its successor.
  const doubled = Float32Array.from({ length: clip.length * 2 }, (_, index) => {
    const at = index >> 1;
    return index % 2 === 0 ? clip[at] : Math.fround(clip[at] + clip[Math.min(at + 1, clip.length - 1)]) / 2;
  });
  const noise = tensors["noise.samples"].data;
  const long = Float32Array.from([...noise, ...doubled, ...doubled.subarray(0, 64_000)]);
  for (const [name, samples] of Object.entries({ speech: doubled, silence: new Float32Array(32_000), noise, long })) {
    const { data, shape } = takeArray(processor.processSamples(samples, 16_000));
    assert.deepEqual(shape, [1, 80, 3000]);
    for (const [part, first, count] of [["head", 0, 200], ["tail", 2980, 20]]) {
      tensors[`${name}.${part}`].data.forEach((value, index) => {
        const difference = Math.abs(data[Math.floor(index / count) * 3000 + first + (index % count)] - value);
        assert.ok(difference <= 1e-5, `${name}.${part} ${index}: ${difference}`);
      });
    }
  }
  // A file and its samples give the same features.
  const of = (handle) => takeArray(handle).data;
  assert.deepEqual(of(processor.process(await read("media/speech.wav"))), of(processor.processSamples(clip, 8000)));
  assert.throws(() => processor.processSamples(new Float32Array(), 16_000), { kind: "Invalid", message: /audio/ });
  assert.throws(() => processor.processSamples(Float32Array.of(NaN), 16_000), { kind: "Invalid", message: /audio/ });
  assert.throws(() => processor.processSamples(new Float32Array(10), 1), { kind: "Invalid" });
});

test("a long sound and a large picture are not copied into the module's memory", async () => {
  const { memory } = await init();
  const model = await openTiny("whisper");
  const processor = new AudioProcessor(model.files, model.family);
  const start = Float32Array.from({ length: 32 * 16_000 }, (_, index) => Math.sin(index / 9) / 2);
  const of = (samples) => takeArray(processor.processSamples(samples, 16_000)).data;
  const expected = of(start);
  // 17 minutes and 64 MiB.
  const long = new Float32Array(1 << 24);
  long.set(start);
  const file = wavOf(new Int16Array(1 << 25));
  // Silence of MPEG 1, layer 3, 44,100 Hz, 320 kbit/s: 52 MB.
  const compressed = mp3Of(50_000);
  const picture = new Uint8Array(2 ** 28 + 1);
  const before = memory.buffer.byteLength;
  assert.deepEqual(of(long), expected);
  assert.deepEqual(takeArray(processor.process(file)).shape, [1, 80, 3000]);
  assert.deepEqual([...soundLength(file)], [16_000, 1 << 25]);
  assert.throws(() => imageSize(picture), { kind: "Invalid", message: /^image: a file of .*; at most 256/ });
  const bytes = new Uint8Array(long.buffer);
  assert.equal(hashes.identity("float32", [1 << 24], bytes), hashes.identity("float32", [1 << 24], bytes.slice()));
  assert.notEqual(hashes.identity("float32", [1 << 12, 1 << 12], bytes), hashes.identity("float32", [1 << 24], bytes));
  assert.throws(() => hashes.identity("float32", [1], bytes), { kind: "Invalid", message: /bytes do not fill/ });
  const grown = memory.buffer.byteLength - before;
  assert.ok(grown <= 2 << 20, `${grown} bytes`);
  assert.deepEqual([...soundLength(compressed)], [44_100, 50_000 * 1152]);
  assert.deepEqual(takeArray(processor.process(compressed)).shape, [1, 80, 3000]);
  // The samples that the model reads, at both rates.
  const decoded = memory.buffer.byteLength - before;
  assert.ok(decoded <= 20 << 20 && decoded < compressed.length / 2, `${decoded} bytes`);
});

test("texts end with the positions of the encoder", async () => {
  const model = await openTiny("bert");
  const limit = (config) => new TextProcessor(model.files, new ModelFamily(JSON.stringify(config), [])).maxTokens;
  const known = limit({ model_type: "bert" });
  assert.equal(limit({ model_type: "bert", max_position_embeddings: known - 1 }), known - 1);
  assert.equal(limit({ model_type: "roberta", max_position_embeddings: known, pad_token_id: 1 }), known - 2);
  assert.equal(limit({ model_type: "llama", max_position_embeddings: known - 1 }), known, "a decoder counts what it writes, too");
});

test("wrong configurations name file and field", async () => {
  const vit = new ModelFamily('{"model_type": "vit"}', []);
  const files = (name, text) => {
    const made = new ConfigFiles();
    made.set(name, text);
    return made;
  };
  assert.throws(() => new ModelFamily('{"model_type": "gpt_neox"}', []), { kind: "Unsupported", message: /config.json.*model_type.*bert/ });
  assert.throws(() => new ModelFamily("{}", []), { kind: "Invalid", message: /config.json.*model_type/ });
  assert.throws(() => new ModelFamily("[", []), { kind: "Corrupt", message: /config.json/ });
  assert.throws(() => new ModelFamily('{"model_type": "vit"}', [], "fp15"), { kind: "Invalid", message: /fp16/ });
  assert.throws(() => new ModelFamily('{"model_type": "vit"}', ["onnx/model.onnx"], "fp16"), { kind: "NotFound", message: /onnx\/model.onnx/ });
  assert.throws(() => new ImageProcessor(files("preprocessor_config.json", '{"size": 32, "resample": 9}'), vit), { kind: "Invalid", message: /resample/ });
  assert.throws(() => new TextProcessor(new ConfigFiles(), bert), { kind: "NotFound", message: /tokenizer.json/ });
  assert.throws(() => new TextProcessor(files("tokenizer.json", "{"), bert), { kind: "Corrupt", message: /tokenizer.json/ });
  const whisper = await openTiny("whisper");
  assert.throws(() => new Generation(files("generation_config.json", "[]"), whisper.family, "transcription"), { kind: "Corrupt", message: /generation_config.json/ });
});

test("a damaged tokenizer on which a library fails is an error", () => {
  const files = new ConfigFiles();
  const model = { type: "WordLevel", vocab: { a: 0, "[UNK]": 1 }, unk_token: "[UNK]" };
  const template = { type: "TemplateProcessing", single: [{ SpecialToken: { id: "Y", type_id: 0 } }], pair: [], special_tokens: {} };
  files.set("tokenizer.json", JSON.stringify({ model, added_tokens: [], post_processor: template }));
  const failure = { name: "CotensorError", kind: "Corrupt", message: /tokenizer|damaged/ };
  assert.throws(() => new TextProcessor(files, bert).encode(["a"]), failure);
  // Other objects are not concerned.
  assert.throws(() => new TextProcessor(new ConfigFiles(), bert), { kind: "NotFound" });
});

test("sentence embeddings are pooled over tokens", () => {
  const rows = Float32Array.of(1, 0, 0, 1, 9, 9);
  const open = new SentencePooling(new ConfigFiles(), bert, "model");
  assert.throws(() => open.pool(rows, 2, Uint8Array.of(1, 1, 0), 0), { kind: "Invalid", message: /1_Pooling/ });
  const first = new SentencePooling(new ConfigFiles(), bert, "Xenova/bge-small-en-v1.5");
  assert.match(first.notice, /bge-small-en-v1.5/);
  assert.deepEqual([...first.pool(rows, 2, Uint8Array.of(1, 1, 0), 0)], [1, 0]);
  const files = new ConfigFiles();
  files.set("1_Pooling/config.json", '{"pooling_mode": "mean"}');
  const pooling = new SentencePooling(files, bert, "model");
  assert.equal(pooling.notice, undefined);
  const [x, y] = pooling.pool(rows, 2, Uint8Array.of(1, 1, 0), 0);
  assert.ok(Math.abs(x - Math.SQRT1_2) < 1e-6 && Math.abs(y - Math.SQRT1_2) < 1e-6);
  assert.throws(() => pooling.pool(Float32Array.of(1, 0), 2, Uint8Array.of(1, 1), 0), { kind: "Invalid", message: /rows/ });
  assert.equal(pooling.prompt("query"), "");
});

/** Differences in levels of 255: at most 2, and 0.1 on average. */
function near(actual, expected, toLevels, name) {
  assert.equal(actual.length, expected.length, name);
  const levels = Array.from(actual, (value, index) => Math.abs(toLevels(value - expected[index], index)));
  const [worst, mean] = [levels.reduce((a, b) => Math.max(a, b), 0), levels.reduce((a, b) => a + b, 0) / levels.length];
  assert.ok(worst <= 2.01 && mean <= 0.1, `${name}: worst ${worst}, mean ${mean} of 255`);
}

/** A bitmap file (BMP) with 24 bits for each pixel, rows from bottom to top. */
function bitmap(rgba, width, height) {
  const stride = Math.ceil((width * 3) / 4) * 4;
  const file = new Uint8Array(54 + stride * height);
  const view = new DataView(file.buffer);
  file.set([0x42, 0x4d]);
  [[2, file.length], [10, 54], [14, 40], [18, width], [22, height], [34, stride * height]].forEach(([at, value]) => view.setUint32(at, value, true));
  [[26, 1], [28, 24]].forEach(([at, value]) => view.setUint16(at, value, true));
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const [red, green, blue] = rgba.subarray((y * width + x) * 4);
      file.set([blue, green, red], 54 + (height - 1 - y) * stride + x * 3);
    }
  }
  return file;
}

/** An MP3 file of silent frames of 1152 samples. */
function mp3Of(frames) {
  const frame = new Uint8Array(1044);
  frame.set([0xff, 0xfb, 0xe0, 0xc0]);
  const file = new Uint8Array(frames * frame.length);
  for (let index = 0; index < frames; index += 1) file.set(frame, index * frame.length);
  return file;
}

/** A WAV file of 16 kHz. */
function wavOf(samples) {
  const file = new Uint8Array(44 + samples.byteLength);
  const view = new DataView(file.buffer);
  file.set(new TextEncoder().encode("RIFF"));
  file.set(new TextEncoder().encode("WAVEfmt "), 8);
  file.set(new TextEncoder().encode("data"), 36);
  [[4, file.length - 8], [16, 16], [24, 16_000], [28, 32_000], [40, samples.byteLength]].forEach(([at, value]) => view.setUint32(at, value, true));
  [[20, 1], [22, 1], [32, 2], [34, 16]].forEach(([at, value]) => view.setUint16(at, value, true));
  file.set(new Uint8Array(samples.buffer), 44);
  return file;
}

/** The samples of a WAV file with 16 bits for each sample and one channel. */
function samplesOfWav(file) {
  const view = new DataView(file.buffer, file.byteOffset);
  const at = [...Array(200).keys()].find((at) => String.fromCharCode(...file.subarray(at, at + 4)) === "data");
  return Float32Array.from({ length: view.getUint32(at + 4, true) / 2 }, (_, index) => view.getInt16(at + 8 + index * 2, true) / 32768);
}

// Speech in Node, on the CPU: sounds whose header states another length, and what runs while a long sound is opened.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import * as ort from "onnxruntime-web";
import { CotensorError, createBackend, createModel } from "cotensor";
import { Generation, loadModels, soundLength, TextProcessor } from "../dist/models/core.js";
import { rerank } from "../dist/models/rerank.js";
import { write } from "../dist/models/writing.js";
import { serve } from "./support/server.mjs";
import { openTiny } from "./support/tiny.mjs";

ort.env.wasm.numThreads = 1;
ort.env.logLevel = "fatal";
const fixture = async (path) => new Uint8Array(await readFile(new URL(`../../fixtures/${path}`, import.meta.url)));
let server, backend;

before(async () => {
  server = await serve();
  await loadModels();
  backend = await createBackend("cpu", { ort, models: `${server.url}unpacked/` });
});
after(async () => {
  await backend.dispose();
  server.close();
});

/** CRC-16/ARC, which ends the tag of an MP3 file. */
function crc16(bytes) {
  let crc = 0;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit += 1) crc = crc & 1 ? (crc >> 1) ^ 0xa001 : crc >> 1;
  }
  return crc;
}

/** An MP3 file whose tag states `times` as many frames, and no padding behind them. */
function stating(mp3, times) {
  const file = mp3.slice();
  const view = new DataView(file.buffer);
  const [xing, lame] = ["Xing", "LAME"].map((name) => Buffer.from(file).indexOf(name));
  assert.equal(view.getUint16(lame + 34), crc16(file.subarray(0, lame + 34)));
  view.setUint32(xing + 8, view.getUint32(xing + 8) * times);
  file[lame + 22] &= 0xf0;
  file[lame + 23] = 0;
  view.setUint16(lame + 34, crc16(file.subarray(0, lame + 34)));
  return file;
}

test("a sound that is shorter than its header states is transcribed as the short sound that it is", async () => {
  const mp3 = await fixture("tiny/audio/speech.mp3");
  const transcript = async (audio) => {
    const whisper = createModel(backend, { modelId: "sounds/whisper" });
    const pieces = [];
    const { answer, outputs } = await whisper.process({ audio }, { onText: (piece) => pieces.push(piece) });
    await whisper.dispose();
    assert.equal(pieces.join("").trim(), answer.text);
    return { text: answer.text, tokens: [...outputs[0].values] };
  };
  const short = await transcript(stating(mp3, 1));
  assert.ok(short.tokens.length > 0);
  const seconds = (file) => soundLength(file).reduce((rate, frames) => frames / rate);
  assert.ok(seconds(stating(mp3, 1)) < 2 && seconds(stating(mp3, 5)) > 4, "beside the window of 2 s");
  assert.deepEqual(await transcript(stating(mp3, 5)), short);
});

test("other work runs while a long sound is opened, and a call that ends meanwhile computes nothing", async () => {
  const whisper = createModel(backend, { modelId: "sounds/whisper" });
  await whisper.initialize();
  const before = backend.store.getDiagnostics().tensors.length;
  const audio = new Float32Array(60 * 8000).map((_, index) => Math.sin(index / 3) / 2);
  const abort = new AbortController();
  const called = whisper.process({ audio, samplingRate: 8000 }, { signal: abort.signal }).then(() => "done", ({ name }) => name);
  setImmediate(() => abort.abort());
  assert.equal(await called, "AbortError");
  assert.equal(backend.store.getDiagnostics().tensors.length, before);
  await whisper.dispose();
});

/** A model that is disposed while its encoder runs. What it made is freed then, as objects of a module are. */
function disposedMeanwhile() {
  let isDisposed = false;
  const check = () => {
    if (isDisposed) throw new CotensorError("Conflict", "m: the model was disposed; create it again");
  };
  const freed = (object) => new Proxy(object, { get: (target, name) => (isDisposed ? assert.fail(`${name} of a freed object`) : target[name]) });
  const model = {
    name: "m",
    check,
    decoder: null,
    def: (role) => ({ role, inputs: {}, inputs_optional: {} }),
    roles: () => ["encoder"],
    decoderRoles: () => ["decoder"],
    stage: async () => (check(), { inputs: [] }),
    answers: async () => freed({ pairLogit: () => 0 }),
    get processors() {
      check();
      return { encodePair: () => ({ mask: { data: [1n] } }), speechWindows: () => undefined };
    },
  };
  return { model, dispose: () => (isDisposed = true) };
}

test("a model that is disposed while its encoder runs says so", async () => {
  const { model, dispose } = disposedMeanwhile();
  const lastOutput = async () => (dispose(), { name: "logits", shape: [1], values: new Float32Array(1) });
  const run = { model, task: { name: "rerank", head: true }, inputs: { text: "a", texts: ["b"] }, lastOutput, notices: [] };
  await assert.rejects(rerank(run, undefined), { kind: "Conflict", message: /disposed/ });
  const other = disposedMeanwhile();
  const { files, family } = await openTiny("whisper");
  const [generation, text] = [new Generation(files, family, "transcription"), new TextProcessor(files, family)];
  const whisper = Object.assign(other.model, { text, generation: () => generation });
  const result = async () => {
    other.dispose();
    for (const each of [generation, text]) each.free();
    return { shape: [1, 1500, 8] };
  };
  const task = { name: "transcription", answer: "transcript" };
  const speech = { model: whisper, task, inputs: { audio: new Uint8Array(1) }, options: {}, notices: [], isGiven: () => false, result, call: {} };
  await assert.rejects(write(speech), { kind: "Conflict", message: /disposed/ });
});

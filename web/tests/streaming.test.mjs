// Streams of sound, with models that count samples.
import assert from "node:assert/strict";
import { test } from "node:test";
import { SharedTensor, Store, StreamingProcessor } from "cotensor";

/** Windows of 100 samples. */
const WINDOW = { samplingRate: 1000, windowSeconds: 0.1 };

/** A model whose transcript is the sum of the samples, and which ends a call when `release` is called, or at once. */
async function counting({ waits = false } = {}) {
  const store = await Store.create();
  const parts = [];
  const held = [];
  let release = () => undefined;
  const process = async ({ audio }) => {
    held.push(parts.map(({ tensor }) => tensor.getReferenceCount()));
    if (waits) await new Promise((resolve) => (release = resolve));
    const tensor = new SharedTensor(store, store.put(`part ${parts.length}`, audio, { holder: "speech", kind: "audio_embedding" }));
    parts.push({ samples: audio.length, tensor });
    return { text: String(audio.reduce((sum, each) => sum + each, 0)), output_tensors: { audio_embedding: tensor } };
  };
  return { model: { modelId: "speech", process }, parts, held, release: () => release() };
}
const ones = (length) => new Float32Array(length).fill(1);
const turn = () => new Promise(setImmediate);

test("a chunk that is refused leaves nothing in the stream", async () => {
  const { model, parts, release } = await counting({ waits: true });
  const stream = new StreamingProcessor({ audioModel: model, ...WINDOW });
  stream.processAudioWithTranscription(ones(210));
  assert.throws(() => stream.processAudioWithTranscription(ones(95)), { kind: "Refused", message: /pass this chunk again/ });
  assert.throws(() => stream.processAudioWithTranscription(ones(300)), { kind: "Invalid", message: /at most 2 windows of 100 .* call push/ });
  const flushed = stream.flush();
  while (parts.length < 3) {
    release();
    await turn();
  }
  const { text, segments } = await flushed;
  assert.deepEqual([text, segments.map(({ start, end }) => [start, end])], ["100 100 10", [[0, 0.1], [0.1, 0.2], [0.2, 0.21]]]);
});

test("a chunk of any length is pushed window by window, and run gives all parts", async () => {
  const { model, parts } = await counting();
  const stream = new StreamingProcessor({ audioModel: model, ...WINDOW });
  const { text, segments } = await stream.run([ones(50), ones(1000), ones(5)]);
  assert.deepEqual(parts.map(({ samples }) => samples), [...Array(10).fill(100), 55]);
  assert.deepEqual([segments.length, text], [11, [...Array(10).fill("100"), "55"].join(" ")]);
  await assert.rejects(stream.push([1, 2]), { kind: "Invalid", message: /audioChunk/ });
});

test("useSharedTensors: false releases the tensors of a part before the next one", async () => {
  for (const [useSharedTensors, expected] of [[false, [[], [0], [0, 0]]], [true, [[], [1], [1, 1]]], [undefined, [[], [1], [1, 1]]]]) {
    const { model, held } = await counting();
    const options = useSharedTensors === undefined ? {} : { useSharedTensors };
    await new StreamingProcessor({ audioModel: model, ...WINDOW, ...options }).push(ones(300));
    assert.deepEqual(held, expected);
  }
});

// Graphs that are imported run in onnxruntime-web with the results of the originals, and their bytes stay in JavaScript's memory.
import assert from "node:assert/strict";
import { test } from "node:test";
import * as ort from "onnxruntime-web";
import { AudioProcessor, CheckpointHeader, GraphFile, ImageProcessor, ModelFamily, TextProcessor, contentHash, loadModels, newHasher, scaleBeforeTraining } from "../dist/models/core.js";
import init from "../dist/models/cotensor_models.js";
import { onnxModel } from "./support/onnx.mjs";
import { readSafetensors, relativeError } from "./support/safetensors.mjs";
import { openTiny } from "./support/tiny.mjs";

await loadModels();
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "error";

/** The graphs of a role of a model, with the fingerprints of its preprocessing. */
async function stagesOf(model, role) {
  const { file, media } = model.description.stages.find((stage) => stage.role === role);
  const processors = { text: TextProcessor, image: ImageProcessor, audio: AudioProcessor };
  const fingerprints = media.map((medium) => new processors[medium](model.files, model.family).fingerprint);
  const graph = await model.graph(file);
  try {
    return graph.stages(model.family, role, fingerprints);
  } finally {
    graph.free();
  }
}

/** Runs a graph whose weights are together in one file, each from a multiple of 64. */
async function run(stage, inputs) {
  const description = JSON.parse(stage.describe());
  const offsets = [];
  let end = 0;
  for (const { bytes } of description.weights) {
    offsets.push(end);
    end = Math.ceil((end + bytes) / 64) * 64;
  }
  const pack = new Uint8Array(end);
  description.weights.forEach(({ hash, bytes }, index) => {
    const content = stage.weight(index);
    assert.deepEqual([content.length, contentHash(content)], [bytes, hash]);
    pack.set(content, offsets[index]);
  });
  const graph = stage.encode(description.weights.map(() => "pack"), Float64Array.from(offsets));
  const session = await ort.InferenceSession.create(graph, { executionProviders: ["wasm"], externalData: [{ path: "pack", data: pack }] });
  assert.deepEqual(description.inputs.map(({ name }) => name), session.inputNames);
  assert.deepEqual(description.outputs.map(({ name }) => name), session.outputNames);
  const feeds = description.inputs.map(({ name }) => [name, new ort.Tensor(inputs[name].dtype, inputs[name].data, inputs[name].shape)]);
  const results = await session.run(Object.fromEntries(feeds));
  const read = Object.entries(results).map(([name, { type, dims, data }]) => [name, { dtype: type, shape: [...dims], data: data.slice() }]);
  await session.release();
  return Object.fromEntries(read);
}

const reference = async (model, graph, batch) => {
  const tensors = readSafetensors(await model.bytes("reference.safetensors"));
  const part = (side) => {
    const start = `${graph}.${batch}.${side}.`;
    return Object.fromEntries(Object.entries(tensors).flatMap(([name, tensor]) => (name.startsWith(start) ? [[name.slice(start.length), tensor]] : [])));
  };
  return { inputs: part("in"), outputs: part("out") };
};

function equal(results, outputs) {
  for (const [name, { shape, data }] of Object.entries(outputs)) {
    assert.deepEqual(results[name].shape, shape, name);
    const error = relativeError(results[name].data, data);
    assert.ok(error < 1e-4, `${name}: ${error}`);
  }
  assert.ok(Object.keys(outputs).length > 0);
}

for (const [name, role, graph, batch] of [
  ["bert", "encoder", "model", "b3s16"],
  ["vit", "encoder", "model", "b3"],
  ["clip", "text_tower", "text_model", "b3s14"],
  ["whisper", "decoder", "decoder_model", "b2s6"],
]) {
  test(`imported ${role} of ${name} gives the results of the original`, async () => {
    const model = await openTiny(name);
    const [stage, ...others] = await stagesOf(model, role);
    assert.equal(others.length, 0);
    const { inputs, outputs } = await reference(model, graph, batch);
    equal(await run(stage, inputs), outputs);
    stage.free();
  });
}

test("vision tower of CLIP is cut after the blocks that models share", async () => {
  const model = await openTiny("clip");
  const [blocks, rest] = await stagesOf(model, "vision_tower");
  const { inputs, outputs } = await reference(model, "vision_model", "b3");
  const { role, continues } = JSON.parse(rest.describe());
  assert.deepEqual([role, JSON.parse(blocks.describe()).role, continues], ["vision_tower", "vision_blocks", "hidden_states"]);
  const before = await run(blocks, inputs);
  assert.deepEqual(Object.keys(before), ["hidden_states"]);
  equal(await run(rest, { ...inputs, ...before }), outputs);
});

test("encoder and rest of a whole graph give the results of the original", async () => {
  const model = await openTiny("detr");
  const [encoder] = await stagesOf(model, "encoder");
  const [decoder] = await stagesOf(model, "detector");
  const { inputs, outputs } = await reference(model, "model", "b1h64w40");
  const encoded = await run(encoder, inputs);
  equal(await run(decoder, { ...inputs, ...encoded }), outputs);
  const { file } = model.description.stages.find((stage) => stage.role === "detector");
  assert.equal((await model.graph(file)).runsWhole(model.family, "detector"), false);
});

test("head after an encoder is a graph of its own, and a graph with the encoder's result has none", async () => {
  const model = await openTiny("vit");
  const graph = await model.graph("onnx/model.onnx");
  assert.equal(graph.headAfter(model.family, "encoder", "head"), undefined);
  const [head, { inputs, outputs }] = [(await model.graph("onnx/head.onnx")).head("head"), await reference(model, "head", "b3")];
  equal(await run(head, inputs), outputs);
});

test("scale and bias of similarities are those of the graph", async () => {
  const model = await openTiny("siglip-whole");
  const { similarity, whole_graph } = model.description;
  const [scale, bias] = (await model.graph(whole_graph)).scaleAndBias(similarity.logits);
  assert.ok(scale > 1 && bias < 0, `${scale} ${bias}`);
  assert.equal((await model.graph(whole_graph)).scaleAndBias("image_embeds"), undefined);
});

test("a number of a checkpoint is read without the rest of the file", () => {
  const header = new TextEncoder().encode('{"logit_scale": {"dtype": "F16", "shape": [], "data_offsets": [6, 8]}, "w": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}}');
  const first = new Uint8Array(new BigUint64Array([BigInt(header.length)]).buffer);
  assert.equal(CheckpointHeader.length(first), header.length);
  const checkpoint = new CheckpointHeader(header);
  assert.deepEqual([...checkpoint.range("logit_scale")], [8 + header.length + 6, 2]);
  assert.equal(checkpoint.number("logit_scale", Uint8Array.of(0x00, 0xc9)), -10);
  assert.equal(checkpoint.range("logit_bias"), undefined);
  assert.throws(() => checkpoint.range("w"), { kind: "Corrupt", message: /w.*1 of float32/ });
  assert.throws(() => checkpoint.number("logit_scale", Uint8Array.of(0)), { kind: "Corrupt", message: /logit_scale/ });
  assert.throws(() => CheckpointHeader.length(new Uint8Array(8).fill(255)), { kind: "Corrupt" });
  assert.throws(() => new CheckpointHeader(Uint8Array.of(1)), { kind: "Corrupt" });
  assert.equal(scaleBeforeTraining(new ModelFamily('{"model_type": "siglip"}', [])), undefined);
  const clip = new ModelFamily('{"model_type": "clip", "logit_scale_init_value": 0}', []);
  assert.equal(scaleBeforeTraining(clip), 1);
});

const float = (shape, fill) => ["float32", shape, Float32Array.from({ length: shape.reduce((a, b) => a * b) }, fill)];
const matmul = (extra = {}) =>
  onnxModel({
    inputs: { x: ["float32", ["n", 32]] },
    outputs: { y: ["float32", ["n", 32]] },
    nodes: [{ op: "MatMul", inputs: ["x", "w"], outputs: ["y"] }],
    weights: { w: float([32, 32], (_, index) => index % 7) },
    ...extra,
  });

test("weights inside the file are parts of its array, and transposed ones are turned", async () => {
  const bytes = matmul();
  const stage = new GraphFile("model.onnx", bytes, [], []).head("x");
  const content = stage.weight(0);
  assert.equal(content.buffer, bytes.buffer);
  const input = { x: { dtype: "float32", shape: [1, 32], data: Float32Array.from({ length: 32 }, (_, index) => index % 5) } };
  const plain = await run(stage, input);
  // The same numbers, stored with the axes exchanged.
  const turned = matmul({
    nodes: [
      { op: "Transpose", inputs: ["w"], outputs: ["t"], attributes: { perm: [1, 0] } },
      { op: "MatMul", inputs: ["x", "t"], outputs: ["y"] },
    ],
    weights: { w: float([32, 32], (_, index) => ((index % 32) * 32 + Math.floor(index / 32)) % 7) },
  });
  const other = new GraphFile("turned.onnx", turned, [], []).head("x");
  assert.deepEqual(JSON.parse(other.describe()).space, JSON.parse(stage.describe()).space);
  assert.deepEqual(other.weight(0), content);
  assert.deepEqual(await run(other, input), plain);
  assert.throws(() => stage.weight(1), { kind: "Invalid", message: /index/ });
  assert.throws(() => stage.encode([], new Float64Array()), { kind: "Invalid", message: /locations/ });
  assert.throws(() => stage.encode(["x"], Float64Array.of(-1)), { kind: "Invalid", message: /offsets/ });
});

test("bytes of a large graph are not copied into the module's memory", async () => {
  const { memory } = await init();
  // 512 x 16384 numbers of 4 bytes.
  const large = matmul({ inputs: { x: ["float32", ["n", 512]] }, outputs: { y: ["float32", ["n", 16384]] }, weights: { w: ["float32", [512, 16384], new Float32Array(0)] } });
  assert.throws(() => new GraphFile("large.onnx", large, [], []).head("x"), { kind: "Corrupt", message: /large.onnx.*w/ });
  const bytes = withLargeWeight([512, 16384]);
  const before = memory.buffer.byteLength;
  const stage = new GraphFile("large.onnx", bytes, [], []).head("x");
  const [{ hash, bytes: size }] = JSON.parse(stage.describe()).weights;
  assert.deepEqual([size, hash], [32 << 20, contentHash(bytes.subarray(bytes.length - (32 << 20)))]);
  assert.equal(stage.weight(0).buffer, bytes.buffer);
  // As the cache hashes a weight that it stores.
  const hasher = newHasher();
  hasher.update(stage.weight(0));
  assert.equal(hasher.digest(), hash);
  const grown = memory.buffer.byteLength - before;
  assert.ok(grown <= 2 << 20, `${grown} bytes`);
});

test("damaged graphs and external data outside the folder are refused", async () => {
  const bytes = matmul();
  for (const length of [0, 1, 10, bytes.length - 1]) {
    assert.throws(() => GraphFile.locations("model.onnx", bytes.slice(0, length)), (error) => error.kind === "Corrupt" && /model.onnx/.test(error.message), `${length}`);
  }
  const model = await openTiny("bert");
  const graph = await model.bytes("onnx/model.onnx");
  assert.deepEqual(GraphFile.locations("onnx/model.onnx", graph), ["model.onnx_data"]);
  const without = new GraphFile("onnx/model.onnx", graph, [], []);
  assert.throws(() => without.head("x"), { kind: "NotFound", message: /onnx\/model.onnx.*model.onnx_data/ });
  const short = new GraphFile("onnx/model.onnx", graph, ["model.onnx_data"], [new Uint8Array(100)]);
  assert.throws(() => short.head("x"), { kind: "Corrupt", message: /100 bytes/ });
  assert.throws(() => new GraphFile("onnx/model.onnx", graph, ["a"], []), { kind: "Invalid", message: /external/ });
  const moved = replaced(graph, "model.onnx_data", "../../../x.data");
  assert.throws(() => GraphFile.locations("onnx/model.onnx", moved), { kind: "Invalid", message: /not inside/ });
  const vit = new ModelFamily('{"model_type": "vit"}', []);
  const file = new GraphFile("model.onnx", bytes, [], []);
  assert.throws(() => file.stages(vit, "decoder", []), { kind: "Unsupported", message: /decoder/ });
  assert.throws(() => file.stages(vit, "encoder", []), { kind: "Invalid", message: /preprocessing/ });
});

/** A graph `y = x w` whose weight of this shape is the end of the file. */
function withLargeWeight(shape) {
  const small = matmul({ inputs: { x: ["float32", ["n", shape[0]]] }, outputs: { y: ["float32", ["n", shape[1]]] }, weights: {} });
  const size = shape.reduce((a, b) => a * b) * 4;
  const varint = (value) => (value < 128 ? [value] : [(value % 128) | 128, ...varint(Math.floor(value / 128))]);
  const tensor = [...shape.flatMap((dim) => [8, ...varint(dim)]), 16, 1, 66, 1, 119, 74, ...varint(size)];
  const initializer = [42, ...varint(tensor.length + size), ...tensor];
  // The model: version (2 bytes), then the graph (field 7), then the operator sets.
  assert.equal(small[2], 58);
  let [length, at] = [0, 3];
  for (let shift = 0; ; shift += 7) {
    length += (small[at] & 127) * 2 ** shift;
    if (small[at++] < 128) break;
  }
  const [graph, rest] = [small.subarray(at, at + length), small.subarray(at + length)];
  const head = [...small.subarray(0, 2), ...rest, 58, ...varint(length + initializer.length + size), ...graph, ...initializer];
  const bytes = new Uint8Array(head.length + size);
  bytes.set(head);
  for (let index = head.length; index < bytes.length; index += 4096) bytes[index] = index % 251;
  return bytes;
}

/** The bytes with one text in place of another of the same length. */
function replaced(bytes, from, to) {
  assert.equal(from.length, to.length);
  const text = Buffer.from(bytes).toString("latin1").replaceAll(from, to);
  return new Uint8Array(Buffer.from(text, "latin1"));
}

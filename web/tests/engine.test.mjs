// The adapter of onnxruntime-web in Node, on its provider for the host.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import * as ort from "onnxruntime-web";
import { CpuMemory, OrtEngine, Store, ortLane } from "cotensor";
import { CASES, errorsOfCases } from "./support/checks.mjs";
import { readGraph, readReference } from "./support/models.mjs";
import { onnxModel } from "./support/onnx.mjs";

ort.env.wasm.numThreads = 1;
ort.env.logLevel = "fatal";

const negate = (dtype, shape) => ({
  graph: onnxModel({ inputs: { x: [dtype, shape] }, outputs: { y: [dtype, shape] }, nodes: [{ op: "Neg", inputs: ["x"], outputs: ["y"] }] }),
});
const create = async (options) => {
  const store = await Store.create(options);
  return { store, engine: OrtEngine.create({ ort, store, provider: "wasm" }) };
};
const copies = (store) => Object.fromEntries(store.getDiagnostics().copies.map(({ reason, count, bytes }) => [reason, [count, bytes]]));
const is = (kind, message) => (error) => error.kind === kind && message.test(error.message);

test("results on the host equal the references", async () => {
  const { store, engine } = await create();
  const errors = await errorsOfCases(engine);
  assert.equal(Object.keys(errors).length, 2 * CASES.length);
  for (const [name, error] of Object.entries(errors)) assert.ok(error < 1e-4, `${name}: ${error}`);
  await engine.dispose();
  assert.deepEqual([store.names(), store.getStats().memory_usage_bytes, engine.sessionCount], [[], 0, 0]);
});

test("a graph has the ports of its file and the names of the engine", async () => {
  const { engine } = await create();
  const graph = await engine.load({ files: await readGraph("bert", "model") });
  assert.deepEqual(graph.inputs.map(({ name, dtype, shape }) => [name, dtype, shape.length]), ["input_ids", "attention_mask", "token_type_ids"].map((name) => [name, "int64", 2]));
  assert.deepEqual(graph.outputs, [{ name: "last_hidden_state", dtype: "float32", shape: ["batch", "sequence", 32] }]);
  assert.deepEqual([graph.engine, graph.variant, graph.precision, graph.device], [["ort-web", ort.env.versions.web], "wasm", "float32", "cpu"]);
});

test("the copies of a run on the host are counted, and a tensor on the host is read where it is", async () => {
  const { store, engine } = await create();
  const graph = await engine.load({ files: negate("float32", ["n"]), label: "negate" });
  const tensor = store.adopt("x", new Float32Array([1, 2, 3, 4]), { shape: [4], holder: "vit" });
  const { outputs: [y], isPrivate, milliseconds } = await graph.run({ x: tensor }, ["y"], { holder: "clip" });
  assert.deepEqual([[...y.array()], y.name, y.holder, isPrivate, milliseconds > 0], [[-1, -2, -3, -4], "negate/y", "clip", false, true]);
  assert.deepEqual(copies(store), { "private copy": [1, 16], "engine output": [1, 16] });
  assert.deepEqual(tensor.holders, { vit: 1 }, "the run gave its lease back");
  const { outputs: [part] } = await graph.run({ x: tensor.view([1], [2]) }, ["y"]);
  assert.deepEqual([...part.array()], [-2, -3]);
  const gaps = await graph.run({ x: tensor.view([0], [2], [2]) }, ["y"]);
  assert.deepEqual([...gaps.outputs[0].array()], [-1, -3]);
});

test("a tensor of another device is read back with a reason", async () => {
  class FakeGpu extends CpuMemory {
    device = "webgpu";
  }
  const { store, engine } = await create({ memories: [new FakeGpu()] });
  const graph = await engine.load({ files: negate("float32", ["n"]) });
  const tensor = store.put("x", new Float32Array([5, 6]), { device: "webgpu" });
  const { outputs } = await graph.run({ x: tensor }, ["y"]);
  assert.deepEqual([...outputs[0].array()], [-5, -6]);
  assert.deepEqual(store.getDiagnostics().read_backs, [{ reason: "input of a graph that runs on the host", count: 1, bytes: 8 }]);
  assert.throws(() => OrtEngine.create({ ort, store, provider: "webgpu" }), is("Unsupported", /another class/));
  assert.throws(() => OrtEngine.create({ ort, store, provider: "webnn" }), is("Unsupported", /no memory on webnn/));
  assert.throws(() => OrtEngine.create({ ort, store, provider: "cuda" }), is("Invalid", /provider/));
});

test("inputs and outputs that a graph does not have are refused, with its own", async () => {
  const { store, engine } = await create();
  const graph = await engine.load({
    files: {
      graph: onnxModel({
        inputs: { x: ["float32", ["n", 2]], z: ["float32", ["n", 2]] },
        outputs: { y: ["float32", ["n", 2]] },
        nodes: [{ op: "Add", inputs: ["x", "z"], outputs: ["y"] }],
      }),
    },
    label: "add",
  });
  const x = { data: new Float32Array(4), shape: [2, 2] };
  const refuses = (inputs, message, outputs = ["y"]) => assert.rejects(graph.run(inputs, outputs), is("Invalid", message));
  await refuses({ x }, /add: input z is missing; the graph reads x, z/);
  await refuses({ x, z: x, w: x }, /no input is named w/);
  await refuses({ x, z: x }, /no output is named q; the graph has y/, ["q"]);
  await refuses({ x, z: { data: new Float64Array(4), shape: [2, 2] } }, /input z has float64, the graph reads float32/);
  await refuses({ x, z: { data: new Float32Array(4), shape: [4] } }, /input z has shape \[4\], the graph reads \[n, 2\]: 2 dimensions/);
  await refuses({ x, z: { data: new Float32Array(6), shape: [2, 3] } }, /dimension 1 is 2/);
  await refuses({ x, z: { data: new Float32Array(6), shape: [3, 2] } }, /n is 2 in another input/);
  await refuses({ x, z: { data: new Float32Array(3), shape: [2, 2] } }, /input z has 12 bytes; float32 of shape \[2, 2\] has 16/);
  await assert.rejects(engine.load({ files: { graph: new Uint8Array([1, 2, 3]) }, label: "noise" }), is("Engine", /noise: onnxruntime-web:/));
  assert.equal(engine.sessionCount, 1);
  const failed = await engine.load({ files: { graph: onnxModel({ inputs: { x: ["float32", ["a"]], z: ["float32", ["b"]] }, outputs: { y: ["float32", ["c"]] }, nodes: [{ op: "Add", inputs: ["x", "z"], outputs: ["y"] }] }) }, label: "bad" });
  const sized = (length) => ({ data: new Float32Array(length).fill(1), shape: [length] });
  await assert.rejects(failed.run({ x: sized(3), z: sized(2) }, ["y"]), is("Engine", /bad: onnxruntime-web:.*broadcast/));
  const { outputs } = await failed.run({ x: sized(3), z: sized(1) }, ["y"]);
  assert.deepEqual([...outputs[0].array()], [2, 2, 2], "a session on the host runs after a failure");
  assert.equal(store.getStats().memory_usage_bytes, 12);
});

test("element types keep their bits", async () => {
  const { store, engine } = await create();
  for (const [dtype, array, expected] of [
    ["int64", new BigInt64Array([1n, -(2n ** 40n)]), new BigInt64Array([-1n, 2n ** 40n])],
    ["int32", new Int32Array([7, -7]), new Int32Array([-7, 7])],
    ["int8", new Int8Array([3, -3]), new Int8Array([-3, 3])],
    ["float16", new Uint16Array([0x3c00, 0xc000]), new Uint16Array([0xbc00, 0x4000])],
  ]) {
    const graph = await engine.load({ files: negate(dtype, ["n"]), label: dtype });
    const { outputs: [y] } = await graph.run({ x: store.put(`x ${dtype}`, array, { dtype }) }, ["y"]);
    assert.deepEqual([y.dtype, y.array()], [dtype, expected]);
  }
  const empty = await engine.load({ files: negate("float32", ["n"]) });
  const { outputs } = await empty.run({ x: { data: new Float32Array(0), shape: [0] } }, ["y"]);
  assert.deepEqual([outputs[0].shape, outputs[0].byteLength], [[0], 0]);
});

test("equal graphs share a session, which the last user releases", async () => {
  const { engine } = await create();
  const files = await readGraph("vit", "head");
  const graphs = await Promise.all([1, 2, 3].map(() => engine.load({ files })));
  assert.equal(engine.sessionCount, 1);
  const other = await engine.load({ files, dimensions: { batch: 1 } });
  assert.deepEqual([engine.sessionCount, other.inputs[0].shape[0]], [2, 1]);
  const { inputs, outputs } = await readReference("vit", "head.b1");
  await graphs[1].release();
  await graphs[1].release();
  await graphs[0].release();
  await assert.rejects(graphs[0].run(inputs, ["logits"]), is("Conflict", /released/));
  const run = await graphs[2].run(inputs, ["logits"]);
  assert.equal(run.outputs[0].array().length, outputs.logits.data.length);
  await Promise.all([graphs[2].release(), other.release()]);
  assert.equal(engine.sessionCount, 0);
});

test("files are read once per session, and again for the next one", async () => {
  const { engine } = await create();
  let reads = 0;
  const files = async () => {
    reads += 1;
    return readGraph("vit", "head");
  };
  const [first, second] = await Promise.all([engine.load({ files, key: "head" }), engine.load({ files, key: "head" })]);
  assert.deepEqual([reads, engine.sessionCount], [1, 1]);
  await first.release();
  await second.release();
  await engine.load({ files, key: "head" });
  assert.equal(reads, 2);
  await assert.rejects(engine.load({ files: () => Promise.reject(new Error("no network")), key: "x", label: "lost" }), is("Engine", /no network/));
  assert.equal(engine.sessionCount, 1);
});

test("runs of all engines of a library take turns, in order", async () => {
  const [one, two] = [await create(), await create()];
  let inside = 0;
  const order = [];
  const { run } = ort.InferenceSession.prototype;
  ort.InferenceSession.prototype.run = async function (...args) {
    inside += 1;
    assert.equal(inside, 1, "one run at a time");
    await new Promise(setImmediate);
    const result = await run.apply(this, args);
    inside -= 1;
    return result;
  };
  try {
    const graphs = await Promise.all([one, two].map(({ engine }) => engine.load({ files: negate("float32", [1]) })));
    const runs = [0, 1, 2, 3, 4, 5].map(async (each) => {
      const { outputs } = await graphs[each % 2].run({ x: { data: new Float32Array([each]), shape: [1] } }, ["y"], { describe: () => ({ name: `y${each}` }) });
      order.push(-outputs[0].array()[0]);
    });
    await ortLane(ort).run(async () => assert.equal(inside, 0));
    await Promise.all(runs);
  } finally {
    ort.InferenceSession.prototype.run = run;
  }
  assert.deepEqual(order, [0, 1, 2, 3, 4, 5]);
});

test("an engine that is disposed refuses calls, and leaves the others", async () => {
  const [one, two] = [await create(), await create()];
  const files = negate("float32", ["n"]);
  const [first, second] = [await one.engine.load({ files }), await two.engine.load({ files })];
  const x = { data: new Float32Array([1]), shape: [1] };
  const waiting = first.run({ x }, ["y"]);
  const disposed = one.engine.dispose();
  await assert.rejects(waiting, is("Conflict", /disposed/));
  await disposed;
  await assert.rejects(first.run({ x }, ["y"]), is("Conflict", /disposed/));
  await assert.rejects(one.engine.load({ files }), is("Conflict", /disposed/));
  await first.release();
  assert.deepEqual([...(await second.run({ x }, ["y"])).outputs[0].array()], [-1]);
  assert.equal(one.store.getStats().memory_usage_bytes, 0);
});

test("results that sharing refuses are private, and the budget counts them", async () => {
  const { store, engine } = await create({ budgets: { cpu: 64 }, sharedTensorConfig: { maxSharedTensorSize: 8 } });
  const graph = await engine.load({
    files: {
      graph: onnxModel({
        inputs: { x: ["float32", ["n"]] },
        outputs: { small: ["float32", [1]], y: ["float32", ["n"]] },
        nodes: [
          { op: "Neg", inputs: ["x"], outputs: ["y"] },
          { op: "ReduceSum", inputs: ["x"], outputs: ["small"], attributes: { keepdims: 1 } },
        ],
      }),
    },
    label: "two",
  });
  const x = { data: new Float32Array([1, 2, 3, 4]), shape: [4] };
  const { outputs, isPrivate } = await graph.run({ x }, ["small", "y"], { describe: (name) => ({ name, cached: true }) });
  assert.deepEqual([isPrivate, store.names(), outputs.map((each) => [...each.array()])], [true, [], [[10], [-1, -2, -3, -4]]]);
  assert.deepEqual([store.getStats().refused, store.getStats().memory_usage_bytes], [{ "larger than allowed": 1 }, 20]);
  const large = { data: new Float32Array(12), shape: [12] };
  await assert.rejects(graph.run({ x: large }, ["y"]), is("OverBudget", /./));
  for (const tensor of outputs) tensor.dispose();
  assert.equal(store.getStats().memory_usage_bytes, 0);
});

test("the garbage collector releases graphs that the program forgot", async () => {
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc");
  const { engine } = await create();
  await (async () => {
    await engine.load({ files: negate("float32", ["n"]) });
  })();
  assert.equal(engine.sessionCount, 1);
  for (let tries = 0; tries < 1000 && engine.sessionCount > 0; tries += 1) {
    collect();
    await new Promise(setImmediate);
  }
  assert.equal(engine.sessionCount, 0);
});

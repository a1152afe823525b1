// Stages: results that are computed once.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";
import * as ort from "onnxruntime-web";
import { Computations, CpuMemory, OrtEngine, Stage, Store } from "cotensor";
import { readGraph, readReference } from "./support/models.mjs";

ort.env.wasm.numThreads = 1;
ort.env.logLevel = "fatal";

const hash = (...parts) => createHash("sha256").update(JSON.stringify(parts)).digest("hex");
/** Any hashes of 64 digits. */
const hashes = {
  stageKey: (parts) => hash("stage", { ...parts, inputs: [...parts.inputs].sort((a, b) => (a.name < b.name ? -1 : 1)) }),
  identity: (dtype, shape, bytes) => hash("array", dtype, shape, [...bytes]),
  provenance: (key, index) => hash("output", key, index),
};
const [SPACE, HEAD_SPACE] = ["a".repeat(64), "b".repeat(64)];

/** A graph that counts its runs: the negative of its input, after a turn of the event loop. The first `fails` runs fail. */
function counting(store, { fails = 0 } = {}) {
  const graph = { runs: 0, active: 0, label: "counting", device: "cpu", engine: ["fake", "1"], precision: "float32", variant: "", inputs: [], outputs: [] };
  graph.run = async ({ x }, names, { holder, describe }) => {
    graph.runs += 1;
    graph.active += 1;
    assert.equal(graph.active, 1, "one computation at a time");
    await new Promise(setImmediate);
    graph.active -= 1;
    if (graph.runs <= fails) throw new Error(`run ${graph.runs} failed`);
    let isPrivate = false;
    const tensors = names.map((output, index) => {
      const { name, ...options } = describe(output, index);
      const make = (more) => store.reserve(name, { ...options, ...more, holder, shape: [x.data.length] });
      let reservation;
      try {
        reservation = make({});
      } catch (error) {
        if (error.kind !== "Refused") throw error;
        isPrivate = true;
        reservation = make({ private: true });
      }
      reservation.array().set(x.data.map((each) => -each));
      return reservation.publish();
    });
    return { outputs: tensors, isPrivate, milliseconds: 1 };
  };
  graph.release = async () => {};
  return graph;
}
const input = (...values) => ({ x: { data: Float32Array.from(values), shape: [values.length] } });

async function create(options, graphOptions) {
  const store = await Store.create(options);
  const graph = counting(store, graphOptions);
  const computations = new Computations(store);
  const stage = new Stage({ role: "vision", graph, kind: "vision_embedding", space: SPACE, computations, hashes });
  return { store, graph, computations, stage };
}

test("the second user of a result runs nothing, also while the first one computes", async () => {
  const { store, graph, stage, computations } = await create();
  const runs = await Promise.all(["vit", "clip", "detr"].map((holder) => stage.run(input(1, 2), ["y"], holder)));
  assert.deepEqual([graph.runs, runs.map(({ computed }) => computed)], [1, [true, false, false]]);
  assert.deepEqual(runs.map(({ outputs: [y] }) => [y.holder, y.version, [...y.array()]]), ["vit", "clip", "detr"].map((holder) => [holder, 1, [-1, -2]]));
  const key = stage.key(input(1, 2), ["y"]);
  const [y] = runs[0].outputs;
  assert.deepEqual([y.name, y.kind, y.space, y.provenance], [`vision.y/${key}`, "vision_embedding", SPACE, hashes.provenance(key, 0)]);
  for (const { outputs } of runs) outputs[0].dispose();
  assert.deepEqual([store.names(), computations.running], [[y.name], 0], "the result stays without leases");
  assert.equal((await stage.run(input(1, 2), ["y"])).computed, false);
  assert.equal((await stage.run(input(1, 3), ["y"])).computed, true);
  assert.equal((await stage.run(input(1, 2), ["y", "z"])).computed, true, "other outputs are another result");
});

test("a waiting caller has its lease before the first one releases its own", async () => {
  const { store, stage } = await create({ budgets: { cpu: 8 } });
  const first = stage.run(input(1, 2), ["y"], "vit").then(({ outputs: [y] }) => {
    y.dispose();
    // Takes the room of the result, if nobody holds it.
    return assert.throws(() => store.put("other", new Uint8Array(8)), { kind: "OverBudget" });
  });
  const second = await stage.run(input(1, 2), ["y"], "clip");
  await first;
  assert.deepEqual([second.computed, [...second.outputs[0].array()]], [false, [-1, -2]]);
});

test("after a failure the next caller computes, and only the first one fails", async () => {
  const { graph, stage, computations } = await create({}, { fails: 1 });
  const calls = await Promise.allSettled([1, 2, 3].map(() => stage.run(input(1), ["y"])));
  assert.deepEqual(calls.map(({ status }) => status), ["rejected", "fulfilled", "fulfilled"]);
  assert.deepEqual(calls.slice(1).map(({ value }) => value.computed), [true, false]);
  assert.deepEqual([graph.runs, computations.running], [2, 0]);
});

test("all callers that wait fail when the store is disposed meanwhile", async () => {
  const { store, stage, computations } = await create();
  const calls = [1, 2, 3].map(() => stage.run(input(1), ["y"]));
  store.dispose();
  const ended = await Promise.allSettled(calls);
  assert.deepEqual(ended.map(({ reason }) => reason?.kind), ["Conflict", "Conflict", "Conflict"]);
  assert.equal(computations.running, 0);
});

test("results that the configuration of sharing refuses are computed by each caller", async () => {
  for (const [config, refused] of [
    [{ enableSharedTensors: false }, "sharing disabled"],
    [{ allowedTypes: ["weight"] }, "kind not allowed"],
    [{ maxSharedTensorSize: 4 }, "larger than allowed"],
  ]) {
    const { store, graph, stage } = await create({ sharedTensorConfig: config });
    const serial = async () => [await stage.run(input(1, 2), ["y"]), await stage.run(input(1, 2), ["y"])];
    const runs = await serial();
    assert.deepEqual([graph.runs, runs.map(({ computed }) => computed), store.names()], [2, [true, true], []]);
    assert.deepEqual(Object.values(store.getStats().refused), [2], refused);
    assert.equal(store.getStats().memory_usage_bytes, 16, "the budget counts private results");
    for (const { outputs } of runs) outputs[0].dispose();
    assert.equal(store.getStats().memory_usage_bytes, 0);
  }
});

test("a stage without a space computes each time", async () => {
  const { store, graph, computations } = await create();
  const stage = new Stage({ role: "vision", graph, computations, hashes });
  const [first] = [await stage.run(input(1), ["y"]), await stage.run(input(1), ["y"])];
  assert.deepEqual([graph.runs, stage.key(input(1), ["y"]), store.names(), first.computed], [2, undefined, [], true]);
});

test("an evicted result is computed again", async () => {
  const { store, graph, stage } = await create();
  const [two] = (await stage.run(input(1, 2), ["y", "z"])).outputs;
  two.dispose();
  store.optimizeMemoryUsage();
  assert.equal(store.names().length, 1, "one of two outputs is left");
  const again = await stage.run(input(1, 2), ["y", "z"]);
  assert.deepEqual([again.computed, graph.runs], [true, 2]);
});

test("the key has all that a result depends on", async () => {
  const { store, graph, stage, computations } = await create();
  const base = stage.key(input(1, 2), ["y"]);
  const others = [
    stage.key(input(2, 1), ["y"]),
    stage.key({ x: { data: new Float32Array([1, 2]), shape: [2, 1] } }, ["y"]),
    stage.key({ z: input(1, 2).x }, ["y"]),
    stage.key(input(1, 2), ["z"]),
    new Stage({ role: "vision", graph, space: HEAD_SPACE, computations, hashes }).key(input(1, 2), ["y"]),
    ...[{ engine: ["fake", "2"] }, { variant: "webgpu" }, { precision: "float16" }].map((other) => new Stage({ role: "vision", graph: { ...graph, ...other }, space: SPACE, computations, hashes }).key(input(1, 2), ["y"])),
  ];
  assert.equal(new Set([base, ...others]).size, 1 + others.length);
  assert.equal(stage.key({ x: store.put("x", new Float32Array([1, 2])) }, ["y"]), base, "a tensor without provenance is named by its numbers");
});

test("the identity of a tensor is its provenance, and that of a part is another", async () => {
  class FakeGpu extends CpuMemory {
    device = "webgpu";
  }
  const store = await Store.create({ memories: [new FakeGpu()] });
  const { stage } = await create();
  const key = (x) => stage.key({ x }, ["y"]);
  const put = (name, options) => store.put(name, new Float32Array([1, 2, 3, 4]), options);
  const provenance = "c".repeat(64);
  const [one, two] = [put("one", { provenance, device: "webgpu" }), put("two", { provenance })];
  assert.equal(key(one), key(two), "equal provenance on two devices");
  assert.equal(key(one.view([0], [4])), key(one));
  assert.notEqual(key(one.view([0], [2])), key(one));
  assert.notEqual(key(one.view([0], [2])), key(one.view([2], [2])));
  assert.equal(key(one.view([2], [2])), key(two.view([2], [2])));
  const [plain, same] = [put("plain", { device: "webgpu" }), put("same", { device: "webgpu" })];
  assert.equal(key(plain), key(store.get("plain")), "the same memory");
  assert.notEqual(key(plain), key(same), "nothing tells that they are equal");
  assert.deepEqual(store.getDiagnostics().read_backs, []);
});

test("a head continues on the embedding of another model", async () => {
  const store = await Store.create();
  const engine = OrtEngine.create({ ort, store, provider: "wasm" });
  const computations = new Computations(store);
  const stage = async (role, space, name) => new Stage({ role, space, computations, hashes, kind: "vision_embedding", graph: await engine.load({ files: await readGraph("vit", name), label: role }) });
  const [trunk, head] = [await stage("trunk", SPACE, "model"), await stage("head", HEAD_SPACE, "head")];
  const { inputs } = await readReference("vit", "model.b1");
  const classify = async (holder) => {
    const first = await trunk.run(inputs, ["last_hidden_state"], holder);
    const second = await head.run({ last_hidden_state: first.outputs[0] }, ["logits"], holder);
    return [first.computed, second.computed, [...second.outputs[0].array()]];
  };
  const [a, b] = await Promise.all([classify("one"), classify("two")]);
  for (const step of [0, 1]) assert.equal([a, b].filter((each) => each[step]).length, 1, "one of two callers computes");
  assert.deepEqual(a[2], b[2]);
  await engine.dispose();
});

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { CpuMemory, Store } from "cotensor";

/** Memory that the host cannot address, like a GPU's. */
class FakeGpu extends CpuMemory {
  device = "webgpu";
}

const types = await readFile(new URL("../dist/reports.d.ts", import.meta.url), "utf8");

/** The names of the fields of an interface in the declarations. */
function fields(name) {
  const [, body] = types.match(new RegExp(`interface ${name} \\{\\n([^]*?)\\n\\}`));
  return [...body.matchAll(/^ {4}(\w+):/gm)].map(([, field]) => field).sort();
}

test("the reports have the fields that their types declare", async () => {
  const store = await Store.create();
  store.put("x", new Float32Array(1));
  const diagnostics = store.getDiagnostics();
  const reports = {
    Stats: store.getStats(),
    DeviceStats: store.getStats().devices[0],
    Copies: store.getStats().copies[0],
    Recommendations: store.getOptimizationRecommendations(),
    Diagnostics: diagnostics,
    TensorInfo: diagnostics.tensors[0],
    RecentCopy: diagnostics.recent_copies[0],
    OptimizeReport: store.optimizeMemoryUsage(),
  };
  for (const [name, report] of Object.entries(reports)) assert.deepEqual(Object.keys(report).sort(), fields(name), name);
});

test("statistics count hits, misses, models and devices", async () => {
  const store = await Store.create({ memories: [new FakeGpu()], budgets: { webgpu: 64 } });
  store.put("x", new Float32Array(2), { holder: "bert" });
  store.put("y", new Float32Array(4), { holder: "bert", device: "webgpu" });
  store.get("x", "t5");
  assert.throws(() => store.get("z"));
  const { cache_hits, cache_misses, hit_rate, models, total_tensors, devices, saved_bytes } = store.getStats();
  assert.deepEqual([cache_hits, cache_misses, hit_rate, models, total_tensors, saved_bytes], [1, 1, 0.5, ["bert", "t5"], 2, 8]);
  const shown = devices.map(({ device, memory_usage_bytes, max_memory_bytes }) => [device, memory_usage_bytes, max_memory_bytes]);
  assert.deepEqual(shown, [["cpu", 8, null], ["webgpu", 16, 64]]);
  assert.throws(() => store.put("more", new Float32Array(16), { device: "webgpu" }), (error) => error.kind === "OverBudget");
});

test("every copy is counted, and read-backs have the caller's reason", async () => {
  const store = await Store.create({ memories: [new FakeGpu()] });
  const [host, device] = ["cpu", "webgpu"].map((name) => store.put(name, new Float32Array([1, 2, 3, 4]), { device: name }));
  assert.throws(() => device.array(), (error) => error.kind === "Unsupported" && /await read\(reason\)/.test(error.message));
  assert.deepEqual([...(await device.view([1], [2]).read("show the logits"))], [2, 3]);
  await device.read("show the logits");
  await host.read("change a copy");
  await assert.rejects(device.read(""), (error) => error.kind === "Invalid" && /reason/.test(error.message));
  const { copies, read_backs, recent_read_backs } = store.getDiagnostics();
  const counted = Object.fromEntries(copies.map(({ reason, count, bytes }) => [reason, [count, bytes]]));
  assert.deepEqual(counted, { put: [1, 16], "device transfer": [3, 16 + 8 + 16], "private copy": [1, 16] });
  assert.deepEqual(read_backs, [{ reason: "show the logits", count: 2, bytes: 24 }]);
  assert.deepEqual(recent_read_backs[0], { tensor: "webgpu", reason: "show the logits", bytes: 8 });
});

test("reasons of read-backs are bounded", async () => {
  const store = await Store.create({ memories: [new FakeGpu()] });
  const tensor = store.put("x", new Float32Array(1), { device: "webgpu" });
  for (let index = 0; index < 150; index += 1) await tensor.read(`reason ${index}`);
  const { read_backs, recent_read_backs } = store.getDiagnostics();
  assert.deepEqual([read_backs.length, recent_read_backs.length], [101, 100]);
  assert.equal(read_backs.find(({ reason }) => reason === "other reasons").count, 50);
});

test("optimizing frees unleased tensors", async () => {
  const store = await Store.create();
  store.put("cached", new Float32Array(2), { cached: true }).dispose();
  store.put("held", new Float32Array(2));
  const { freed_tensors, freed_memory_bytes, remaining_tensor_count } = store.optimizeMemoryUsage();
  assert.deepEqual([freed_tensors, freed_memory_bytes, remaining_tensor_count], [["cached"], 8, 1]);
});

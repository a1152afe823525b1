// The documents' manager: registration, counts for each model, the cap, reports.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Store, TensorSharingManager } from "cotensor";

const embedding = { name: "bert_text_embedding", shape: [1, 768], producerModel: "bert", consumerModels: ["t5", "llama"] };

test("a released tensor is freed by optimizing, and the reports have it until then", async () => {
  const manager = await TensorSharingManager.create(1);
  const tensor = manager.registerSharedTensor(embedding);
  tensor.write(new Float32Array(768).fill(1));
  assert.equal(tensor.kind, "text_embedding");
  assert.deepEqual(manager.analyzeSharingOpportunities(), { bert_text_embedding: ["llama", "t5"] });
  const seen = manager.getSharedTensor("bert_text_embedding", "t5");
  assert.equal(seen.array()[767], 1);
  assert.deepEqual([manager.getModelMemoryUsage("t5"), manager.getTensorMemoryUsage("bert_text_embedding")], [3072, 3072]);
  const stats = manager.getStats();
  assert.deepEqual([stats.total_tensors, stats.models, stats.memory_usage_bytes], [1, ["bert", "t5"], 3072]);
  assert.deepEqual(manager.getOptimizationRecommendations().sharing_opportunities, { bert_text_embedding: ["llama"] });
  assert.equal(manager.optimizeMemoryUsage().freed_tensors_count, 0, "held tensors stay");
  assert.deepEqual([manager.releaseModelTensors("bert"), manager.releaseModelTensors("t5")], [1, 1]);
  const { freed_tensors, freed_memory_bytes, memory_reduction_percent } = manager.optimizeMemoryUsage();
  assert.deepEqual([freed_tensors, freed_memory_bytes, memory_reduction_percent], [["bert_text_embedding"], 3072, 100]);
  assert.throws(() => manager.getSharedTensor("bert_text_embedding", "t5"), { kind: "NotFound" });
  assert.equal(manager.getStats().cache_misses, 1);
});

test("a tensor without holders can be acquired until its memory is needed", async () => {
  const manager = await TensorSharingManager.create(1);
  manager.registerSharedTensor({ name: "x", shape: [4], producerModel: "a", dtype: "uint8" }).array()[0] = 9;
  manager.releaseModelTensors("a");
  assert.equal(manager.getSharedTensor("x", "b").array()[0], 9);
  manager.releaseModelTensors("b");
  manager.registerSharedTensor({ name: "large", shape: [2 ** 20], producerModel: "a", dtype: "uint8" });
  assert.throws(() => manager.getSharedTensor("x", "b"), { kind: "NotFound" }, "evicted");
  assert.throws(() => manager.registerSharedTensor({ name: "y", shape: [1], producerModel: "a" }), { kind: "OverBudget" });
});

test("names that are held, models that hold nothing, and unknown names are refused", async () => {
  const manager = new TensorSharingManager(await Store.create());
  manager.registerSharedTensor({ name: "x", shape: [2, 2], producerModel: "vit" });
  assert.throws(() => manager.registerSharedTensor({ name: "x", shape: [1], producerModel: "vit" }), { kind: "Conflict" });
  assert.throws(() => manager.shareTensorBetweenModels("x", "clip", ["detr"]), { kind: "Conflict" });
  assert.throws(() => manager.getTensorMemoryUsage("y"), { kind: "NotFound" });
  assert.deepEqual(manager.shareTensorBetweenModels("x", "vit", ["clip", "detr"]).holders, { vit: 1, clip: 1, detr: 1 });
  const view = manager.createTensorView("x", [1, 0], [1, 2]);
  for (const model of ["vit", "clip", "detr"]) manager.releaseModelTensors(model);
  assert.equal(manager.optimizeMemoryUsage().freed_tensors_count, 0, "a view keeps its tensor");
  view.dispose();
  manager.registerSharedTensor({ name: "x", shape: [1], producerModel: "vit" });
});

import assert from "node:assert/strict";
import { test } from "node:test";
import { SharedTensor, Store } from "cotensor";

const refuses = (call, kind) => assert.throws(call, (error) => error.kind === kind);

test("counts are per model, and the last release frees", async () => {
  const store = await Store.create();
  const tensor = new SharedTensor(store, "x", [2, 2], { producerModel: "bert", kind: "text_embedding" });
  assert.deepEqual([tensor.getReferenceCount(), tensor.tensor.dimensions, tensor.isPublished], [1, [2, 2], false]);
  tensor.acquire("t5");
  tensor.acquire("t5");
  assert.deepEqual([tensor.holders, tensor.getReferenceCount(), tensor.isPublished], [{ bert: 1, t5: 2 }, 3, true]);
  refuses(() => tensor.release("llama"), "Conflict");
  tensor.release("t5");
  tensor.release("t5");
  refuses(() => tensor.release("t5"), "Conflict");
  assert.equal(tensor.isFreed, false);
  tensor.release("bert");
  assert.deepEqual([tensor.isFreed, store.names(), store.getStats().memory_usage_bytes], [true, [], 0]);
  refuses(() => tensor.acquire("t5"), "NotFound");
  refuses(() => tensor.write(new Float32Array(4)), "NotFound");
});

test("the producer writes until another model acquires the tensor", async () => {
  const store = await Store.create();
  const tensor = new SharedTensor(store, "x", [2], { producerModel: "vit" });
  tensor.acquire("vit");
  tensor.array().set([1, 2]);
  tensor.write(new Float32Array([3, 4]));
  refuses(() => store.get("x"), "NotFound");
  tensor.acquire("clip");
  assert.deepEqual([tensor.holders, [...store.get("x").array()]], [{ vit: 2, clip: 1 }, [3, 4]]);
  refuses(() => tensor.write(new Float32Array(2)), "Conflict");
});

test("a tensor that only its producer held is freed unpublished", async () => {
  const store = await Store.create();
  const tensor = new SharedTensor(store, "x", [2], { producerModel: "vit" });
  tensor.release("vit");
  assert.deepEqual([tensor.isFreed, store.getStats().memory_usage_bytes], [true, 0]);
  refuses(() => tensor.release("vit"), "Conflict");
});

test("a view keeps the tensor", async () => {
  const store = await Store.create();
  const tensor = new SharedTensor(store, "x", [2, 2], { producerModel: "vit" });
  tensor.array().set([1, 2, 3, 4]);
  const view = tensor.createView([1, 0], [1, 2]);
  tensor.release("vit");
  assert.deepEqual([[...view.array()], store.has("x")], [[3, 4], true]);
  view.dispose();
  assert.equal(store.has("x"), false);
});

test("a view that models share stays a view", async () => {
  const store = await Store.create();
  const tensor = store.put("x", new Float32Array([1, 2, 3, 4]), { shape: [2, 2], holder: "vit" });
  const shared = new SharedTensor(store, tensor.view([1, 0], [1, 2]));
  shared.acquire("clip");
  shared.release("vit");
  assert.deepEqual([shared.tensor.dimensions, [...shared.array()], shared.byteLength], [[1, 2], [3, 4], 8]);
});

test("verbose logging writes the events of tensors", async (context) => {
  const lines = context.mock.method(console, "log", () => {}).mock;
  await SharedTensor.setVerboseLogging(true);
  const store = await Store.create();
  store.put("logged", new Float32Array(1)).dispose();
  await SharedTensor.setVerboseLogging(false);
  store.put("silent", new Float32Array(1)).dispose();
  assert.deepEqual(lines.calls.map((call) => call.arguments[0]), ["copy logged: 4 bytes, put", "free logged: 4 bytes"]);
});

test("a published tensor becomes a shared tensor of its holder, and the diagnostics have all stores", async () => {
  const [first, second] = [await Store.create(), await Store.create()];
  const space = "c".repeat(64);
  const shared = new SharedTensor(first, first.put("encoded", new Float32Array([1, 2]), { holder: "vit", kind: "vision_embedding", space }));
  new SharedTensor(second, "other", [1], { producerModel: "bert" }).acquire("t5");
  assert.deepEqual([shared.isPublished, shared.kind, shared.space, shared.tensor.dimensions], [true, "vision_embedding", space, [2]]);
  shared.acquire("clip");
  assert.equal(shared.getReferenceCount(), 2);
  const ours = () => SharedTensor.getDiagnostics().tensors.filter(({ name }) => ["encoded", "other"].includes(name)).map(({ holders }) => holders);
  assert.deepEqual(ours(), [{ clip: 1, vit: 1 }, { bert: 1, t5: 1 }]);
  for (const model of ["vit", "clip"]) shared.release(model);
  second.dispose();
  assert.deepEqual([shared.isFreed, ours()], [true, []]);
});

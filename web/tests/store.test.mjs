import assert from "node:assert/strict";
import { test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { CotensorError, CpuMemory, Store, WebnnMemory } from "cotensor";

/** Asserts that `call` throws a CotensorError of that kind whose text matches `text`. */
function refuses(call, kind, text = /./) {
  assert.throws(call, (error) => error instanceof CotensorError && error.kind === kind && text.test(error.message));
}

/** Host memory that counts its live storages. */
class CountingMemory extends CpuMemory {
  live = 0;

  allocate(bytes) {
    this.live += 1;
    return super.allocate(bytes);
  }

  free() {
    this.live -= 1;
  }
}

const counting = async (options = {}) => {
  const memory = new CountingMemory();
  return { memory, store: await Store.create({ memories: [memory], ...options }) };
};

test("a tensor is found by its name and has what was put", async () => {
  const store = await Store.create();
  const put = store.put("x", new Float32Array([1, 2, 3, 4, 5, 6]), { shape: [2, 3], kind: "text_embedding", holder: "bert", metadata: { layer: 3 } });
  const found = store.get("x", "t5");
  assert.deepEqual([...found.array()], [1, 2, 3, 4, 5, 6]);
  assert.deepEqual([found.shape, found.dtype, found.kind, found.producer, found.metadata], [[2, 3], "float32", "text_embedding", "bert", { layer: 3 }]);
  assert.equal(found.array().buffer, put.array().buffer, "both leases have the same memory");
  assert.deepEqual(found.holders, { bert: 1, t5: 1 });
  assert.deepEqual([store.names(), store.has("x"), store.has("y")], [["x"], true, false]);
  refuses(() => store.get("y"), "NotFound", /"y"/);
  refuses(() => store.get("x", "a".repeat(1025)), "Invalid", /^holder: longer than 1024 bytes$/);
});

test("each publication of a name is a version, and readers keep theirs", async () => {
  const { memory, store } = await counting();
  const first = store.put("x", new Int32Array([1]));
  const second = store.put("x", new Int32Array([2]));
  assert.deepEqual([first.version, second.version], [1, 2]);
  assert.deepEqual([first.array()[0], store.get("x").array()[0], store.get("x", "page", 1).array()[0]], [1, 2, 1]);
  refuses(() => store.get("x", "page", 3), "NotFound", /version 3 .* newest is 2/);
  refuses(() => store.get("x", "page", 1.5), "Invalid", /version/);
  store.dispose();
  assert.equal(memory.live, 0);
});

test("the last lease frees the memory", async () => {
  const { memory, store } = await counting();
  const tensor = store.put("x", new Float32Array(4), { holder: "a" });
  const other = tensor.leaseFor("b");
  tensor.dispose();
  assert.deepEqual([memory.live, store.has("x"), other.referenceCount], [1, true, 1]);
  {
    const view = other.view([1], [2]);
    other.dispose();
    assert.deepEqual([memory.live, [...view.array()]], [1, [0, 0]], "a live view keeps its tensor");
    view[Symbol.dispose]();
  }
  assert.deepEqual([memory.live, store.has("x"), store.getStats().memory_usage_bytes], [0, false, 0]);
});

test("a lease of the same elements is a view of a view, and keeps the tensor", async () => {
  const { memory, store } = await counting();
  const tensor = store.put("x", Float32Array.from({ length: 12 }, (_, index) => index), { shape: [3, 4], holder: "a" });
  const part = tensor.view([1, 0], [2, 2], [1, 2]).view([1, 0], [1, 2]);
  const [same, whole] = [part.sameFor("b"), tensor.sameFor("b")];
  part.dispose();
  assert.deepEqual([same.holder, same.shape, [...(await same.read("test"))], whole.isWhole, same.isWhole], ["b", [1, 2], [8, 10], true, false]);
  assert.deepEqual([...same.view([0, 1], [1, 1]).array()], [10]);
  for (const each of [tensor, whole]) each.dispose();
  assert.equal(memory.live, 1);
});

test("a disposed lease is refused, and disposed once", async () => {
  const { memory, store } = await counting();
  const [tensor, other] = [store.put("x", new Float32Array(4)), store.get("x", "other")];
  tensor.dispose();
  tensor.dispose();
  assert.deepEqual([other.referenceCount, memory.live, tensor.isDisposed, other.isDisposed], [1, 1, true, false]);
  for (const use of [() => tensor.array(), () => tensor.view([0], [1]), () => tensor.leaseFor("b"), () => tensor.holders, () => tensor.binding()]) {
    refuses(use, "Conflict", /^x: this lease was disposed; get the tensor again$/);
  }
  await assert.rejects(tensor.read("test"), (error) => error.kind === "Conflict");
  // The number of a disposed lease is used again: it must not be the old lease's.
  const next = store.put("y", new Float32Array(1));
  tensor.dispose();
  assert.equal(next.array().length, 1);
});

test("a disposed store frees everything and refuses calls", async () => {
  const { memory, store } = await counting();
  const tensor = store.put("x", new Float32Array(4));
  const reservation = store.reserve("y", { shape: [4] });
  store.dispose();
  store.dispose();
  assert.equal(memory.live, 0);
  tensor.dispose();
  reservation.dispose();
  for (const use of [() => store.get("x"), () => store.put("x", new Float32Array(1)), () => store.getStats(), () => store.get("x").array()]) {
    refuses(use, "Conflict", /the store was disposed/);
  }
});

test("views share memory, and are checked", async () => {
  const store = await Store.create();
  const tensor = store.put("x", Float32Array.from({ length: 24 }, (_, index) => index), { shape: [4, 6] });
  const rows = tensor.view([1, 0], [2, 6]);
  assert.deepEqual([rows.shape, rows.strides, rows.isContiguous, rows.array()[0]], [[2, 6], [6, 1], true, 6]);
  assert.equal(rows.array().byteOffset - tensor.array().byteOffset, 6 * 4);
  const even = rows.view([0, 0], [2, 3], [1, 2]);
  assert.deepEqual([even.shape, even.strides, even.isContiguous, even.byteLength], [[2, 3], [6, 2], false, 24]);
  refuses(() => even.array(), "Invalid", /gaps; await read/);
  assert.deepEqual([...(await even.read("test"))], [6, 8, 10, 12, 14, 16]);
  assert.deepEqual([...even.view([1, 1], [1, 1]).array()], [14]);
  for (const [offset, size, step] of [[[4, 0], [1, 6]], [[0], [1]], [[0, 0], [4, 4], [1, 2]], [[0, 0], [1, 1], [0, 1]], [[-1, 0], [1, 1]], [[0.5, 0], [1, 1]], [[0, 0], [1]]]) {
    refuses(() => tensor.view(offset, size, step), "Invalid");
  }
  assert.equal(tensor.view([0, 0], [0, 6]).array().length, 0);
});

test("element types have their arrays", async () => {
  const store = await Store.create();
  for (const array of [new Uint8Array(2), new Int8Array(2), new Uint16Array(2), new Int16Array(2), new Uint32Array(2), new Int32Array(2), new Float32Array(2), new Float64Array(2), new BigInt64Array(2), new BigUint64Array(2)]) {
    array[1] = array instanceof BigInt64Array || array instanceof BigUint64Array ? 7n : 7;
    assert.deepEqual(store.put("x", array).array(), array);
  }
  const halves = store.put("h", new Uint16Array([0x3c00]), { dtype: "float16" });
  assert.deepEqual([halves.dtype, halves.array()], ["float16", new Uint16Array([0x3c00])]);
  const complex = store.put("c", new Float32Array([1, 2, 3, 4]), { dtype: "complex64", shape: [2] });
  assert.deepEqual([complex.byteLength, complex.array()], [16, new Float32Array([1, 2, 3, 4])]);
  refuses(() => store.put("x", new DataView(new ArrayBuffer(4))), "Invalid", /dtype/);
  refuses(() => store.put("x", new Float32Array(2), { dtype: "float31" }), "Invalid", /dtype/);
  refuses(() => store.put("x", new Float32Array(2), { shape: [3] }), "Invalid", /8 bytes, the tensor 12/);
  refuses(() => store.put("x", new Float32Array(2), { kind: "smell" }), "Invalid", /kind/);
  refuses(() => store.put("", new Float32Array(2)), "Invalid", /name/);
  refuses(() => store.put("x", new Float32Array(2), { shape: [-2] }), "Invalid", /shape/);
});

test("a reservation is written in place and seen after publishing", async () => {
  const { memory, store } = await counting();
  const reservation = store.reserve("x", { shape: [2], holder: "bert" });
  const array = reservation.array();
  array.set([3, 4]);
  refuses(() => store.get("x"), "NotFound");
  const tensor = reservation.publish();
  assert.equal(tensor.array().buffer, array.buffer, "publishing copies nothing");
  assert.deepEqual([...store.get("x").array()], [3, 4]);
  assert.deepEqual(store.getStats().copies, []);
  refuses(() => reservation.array(), "Conflict", /published or disposed/);
  refuses(() => reservation.publish(), "Conflict");
  store.reserve("y", { shape: [2] }).dispose();
  assert.deepEqual([memory.live, store.getStats().memory_usage_bytes, store.has("y")], [1, 8, false]);
});

test("adopted memory is not copied", async () => {
  const store = await Store.create();
  const array = new Float32Array([1, 2]);
  const tensor = store.adopt("x", array);
  assert.equal(tensor.array().buffer, array.buffer);
  assert.deepEqual(store.getStats().copies, []);
  refuses(() => store.adopt("y", array, { shape: [1] }), "Invalid", /the memory has 8 bytes, the tensor 4/);
  refuses(() => store.adopt("y", {}, { shape: [1] }), "Invalid", /not memory of cpu/);
  refuses(() => store.adopt("y", array, { device: "webgpu" }), "Unsupported", /no memory on webgpu; it has cpu/);
  assert.equal(store.getStats().memory_usage_bytes, 8, "a refused adoption charges nothing");
});

test("the budget evicts cached tensors, cheapest first, and refuses what cannot fit", async () => {
  const { memory, store } = await counting({ budgets: { cpu: 1024 } });
  store.put("dear", new Uint8Array(400), { recompute: 500 }).dispose();
  store.put("cheap", new Uint8Array(400), { recompute: 1 }).dispose();
  const held = store.put("held", new Uint8Array(600), { holder: "clip" });
  assert.deepEqual([store.names(), memory.live], [["dear", "held"], 2]);
  const { evictions, evicted_bytes, memory_usage_bytes, max_memory_bytes } = store.getStats();
  assert.deepEqual([evictions, evicted_bytes, memory_usage_bytes, max_memory_bytes], [1, 400, 1000, 1024]);
  refuses(() => store.put("more", new Uint8Array(600)), "OverBudget", /clip/);
  assert.equal(held.array().length, 600, "a leased tensor stays");
  store.limitMemory("cpu", 600);
  assert.deepEqual([store.names(), memory.live], [["held"], 1]);
  refuses(() => store.limitMemory("webgpu", 1), "Unsupported", /webgpu/);
  refuses(() => store.limitMemory("cpu", -1), "Invalid");
  await assert.rejects(Store.create({ budgets: { webgpu: 1 } }), (error) => error.kind === "Invalid" && /budgets/.test(error.message));
});

test("a memory without room refuses, and its bytes return", async () => {
  class FullMemory extends CpuMemory {
    allocate() {
      throw new RangeError("Array buffer allocation failed");
    }
  }
  const store = await Store.create({ memories: [new FullMemory()] });
  refuses(() => store.put("x", new Uint8Array(8)), "Io", /^x: cpu has no room for 8 bytes.*allocation failed/);
  assert.equal(store.getStats().memory_usage_bytes, 0);
});

test("the configuration of sharing is enforced and counted", async () => {
  const sharedTensorConfig = { allowedTypes: ["vision_embedding"], maxSharedTensorSize: 100 };
  const store = await Store.create({ sharedTensorConfig });
  store.put("ok", new Uint8Array(100), { kind: "vision_embedding" });
  refuses(() => store.put("x", new Uint8Array(101), { kind: "vision_embedding" }), "Refused", /larger than allowed/);
  refuses(() => store.put("x", new Uint8Array(1), { kind: "text_embedding" }), "Refused", /kind not allowed/);
  assert.deepEqual(store.getStats().refused, { "kind not allowed": 1, "larger than allowed": 1 });
  const disabled = await Store.create({ sharedTensorConfig: { enableSharedTensors: false } });
  refuses(() => disabled.put("x", new Uint8Array(1)), "Refused", /disabled/);
});

test("a removed name is gone, and its leases stay", async () => {
  const { memory, store } = await counting();
  const tensor = store.put("x", new Uint8Array([5]));
  store.remove("x");
  assert.deepEqual([store.has("x"), tensor.array()[0], memory.live], [false, 5, 1]);
  tensor.dispose();
  assert.equal(memory.live, 0);
  refuses(() => store.remove("x"), "NotFound");
});

test("a thousand cycles leave nothing", async () => {
  const { memory, store } = await counting({ budgets: { cpu: 4096 } });
  const cycle = (index) => {
    const tensor = store.put(`x${index % 10}`, new Float32Array(256));
    const found = store.get(`x${index % 10}`, `reader${index}`);
    const view = found.view([1], [2]);
    tensor.dispose();
    found.dispose();
    assert.equal(memory.live, 1);
    assert.equal(store.getDiagnostics().tensors.length, 1);
    view.dispose();
  };
  for (let index = 0; index < 1000; index += 1) cycle(index);
  assert.deepEqual([memory.live, store.names(), store.getStats().memory_usage_bytes, store.getStats().peak_memory_bytes], [0, [], 0, 1024]);
});

test("the garbage collector releases what the program forgot", async () => {
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc");
  const { memory, store } = await counting();
  (() => {
    store.put("x", new Float32Array(4)).view([0], [2]);
    store.reserve("y", { shape: [4] });
  })();
  assert.equal(memory.live, 2);
  for (let tries = 0; tries < 1000 && memory.live > 0; tries += 1) {
    collect();
    await new Promise(setImmediate);
  }
  assert.deepEqual([memory.live, store.names(), store.getStats().memory_usage_bytes], [0, [], 0]);
});

test("a tensor has the space and the provenance that its producer gives", async () => {
  const store = await Store.create();
  const [space, provenance] = ["a".repeat(64), "0b".repeat(32)];
  const tensor = store.put("x", new Float32Array(2), { space, provenance });
  assert.deepEqual([tensor.space, tensor.provenance], [space, provenance]);
  assert.equal(store.getDiagnostics().tensors[0].space, "aaaaaaaaaaaa");
  const plain = store.put("y", new Float32Array(2));
  assert.deepEqual([plain.space, plain.provenance], [undefined, undefined]);
  for (const field of ["space", "provenance"]) {
    assert.throws(() => store.put("z", new Float32Array(2), { [field]: "ab" }), { kind: "Invalid", message: new RegExp(`${field}: .*64 hexadecimal digits`) });
  }
});

test("numbers of another type are refused, their bits and bytes are not", async () => {
  const store = await Store.create();
  const numbers = new Int32Array([1, 2]);
  refuses(() => store.put("a", numbers, { dtype: "float32" }), "Invalid", /a: a Int32Array has no float32 numbers; pass a Float32Array/);
  refuses(() => store.adopt("b", numbers, { dtype: "float32" }), "Invalid", /Float32Array/);
  refuses(() => store.put("c", new Float32Array(2), { dtype: "int32", shape: [2] }), "Invalid", /Int32Array/);
  refuses(() => store.put("d", new Float64Array(1), { dtype: "complex64", shape: [1] }), "Invalid", /Float32Array/);
  const bytes = new Uint8Array(Float32Array.of(1, 2).buffer);
  assert.deepEqual([...store.put("e", bytes, { dtype: "float32", shape: [2] }).array()], [1, 2]);
  assert.equal(store.put("f", Uint16Array.of(0x3f80), { dtype: "bfloat16" }).array()[0], 0x3f80);
  assert.equal(store.put("g", Float32Array.of(1, 2), { dtype: "complex64", shape: [1] }).dtype, "complex64");
  assert.equal(store.put("h", Uint8Array.of(1, 0), { dtype: "bool" }).dtype, "bool");
  const other = runInNewContext("Float32Array.of(1, 2)");
  assert.equal(store.put("i", other).dtype, "float32", "of another frame");
});

test("a write that WebNN refuses later is an error of the read, not zeros", async () => {
  const tensor = { dataType: "float32", shape: [4], destroy: () => undefined };
  const writeTensor = () => {
    throw new TypeError("the tensor is not writable");
  };
  const context = { lost: new Promise(() => undefined), createTensor: async () => tensor, writeTensor, readTensor: async () => new ArrayBuffer(16) };
  const store = await Store.create({ memories: [new WebnnMemory(context)] });
  const written = store.put("x", new Float32Array(4).fill(1), { device: "webnn" });
  await assert.rejects(written.read("test"), (error) => error.kind === "Io" && /did not write the tensor: .*not writable/.test(error.message));
  store.dispose();
});

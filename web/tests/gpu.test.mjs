// GPU memory in a headless Chromium. CHROMIUM names the browser.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import { hasWebGpu, openBrowser } from "./support/browsers.mjs";

let browser;

before(async () => {
  browser = await openBrowser("chromium");
});

after(() => browser?.close());

/** Runs `program(cotensor, gpu)` in the page; skips the test without an adapter, unless REQUIRE_WEBGPU is set. */
async function onGpu(context, program) {
  if (!(await hasWebGpu(browser.page, context))) return undefined;
  return browser.run(`(async () => {
    const gpu = await (await navigator.gpu.requestAdapter()).requestDevice();
    return (${program})(await import("/index.js"), gpu);
  })()`);
}

test("a tensor stays on the GPU, and read-backs are counted", async (context) => {
  const seen = await onGpu(context, async ({ GpuMemory, Store }, gpu) => {
    const store = await Store.create({ memories: [new GpuMemory(gpu)], budgets: { webgpu: 1 << 20 } });
    const tensor = store.put("x", Float32Array.from({ length: 12 }, (_, index) => index), { device: "webgpu", shape: [3, 4], holder: "vit" });
    const view = store.get("x", "clip").view([1, 1], [2, 2]);
    const before = store.getDiagnostics();
    const values = [...(await view.read("compare with the reference"))];
    const { buffer, offset, size } = view.location();
    const after = store.getDiagnostics();
    const result = {
      values,
      location: [buffer === tensor.binding().buffer, buffer.size, offset, size],
      readBacks: [before.read_backs, after.read_backs, after.recent_read_backs],
      transfers: [before.copies, after.copies].map(([{ reason, count, bytes }]) => [reason, count, bytes]),
      tensor: [after.tensors[0].device, after.tensors[0].memory, after.tensors[0].holders],
      used: store.getStats().devices.find(({ device }) => device === "webgpu").memory_usage_bytes,
    };
    store.dispose();
    return result;
  });
  if (!seen) return;
  assert.deepEqual(seen.values, [5, 6, 9, 10]);
  assert.deepEqual(seen.location, [true, 48, 20, 24]);
  const read = { reason: "compare with the reference", count: 1, bytes: 24 };
  assert.deepEqual(seen.readBacks, [[], [read], [{ tensor: "x", reason: read.reason, bytes: 24 }]]);
  assert.deepEqual(seen.transfers, [["device transfer", 1, 48], ["device transfer", 2, 72]]);
  assert.deepEqual(seen.tensor, ["webgpu", "device", { vit: 1, clip: 2 }]);
  assert.equal(seen.used, 48);
});

test("two programs of the GPU share a tensor without a copy to the host", async (context) => {
  const seen = await onGpu(context, async ({ GpuMemory, Store }, gpu) => {
    const store = await Store.create({ memories: [new GpuMemory(gpu)] });
    const module = gpu.createShaderModule({
      code: `@group(0) @binding(0) var<storage, read> source: array<f32>;
             @group(0) @binding(1) var<storage, read_write> doubled: array<f32>;
             @compute @workgroup_size(4) fn main(@builtin(global_invocation_id) id: vec3u) { doubled[id.x] = 2 * source[id.x]; }`,
    });
    const pipeline = await gpu.createComputePipelineAsync({ layout: "auto", compute: { module, entryPoint: "main" } });
    const double = (source, name) => {
      const target = store.reserve(name, { device: "webgpu", shape: [4] });
      const entries = [source.binding(), { buffer: target.storage() }].map((resource, binding) => ({ binding, resource }));
      const encoder = gpu.createCommandEncoder();
      const pass = encoder.beginComputePass();
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, gpu.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }));
      pass.dispatchWorkgroups(1);
      pass.end();
      gpu.queue.submit([encoder.finish()]);
      return target.publish();
    };
    const first = double(store.put("x", new Float32Array([1, 2, 3, 4]), { device: "webgpu" }), "encoded");
    const second = double(store.get("encoded", "decoder"), "decoded");
    first.dispose();
    const readBacks = store.getDiagnostics().read_backs.length;
    return { readBacks, values: [...(await second.read("show"))] };
  });
  if (!seen) return;
  assert.deepEqual(seen, { readBacks: 0, values: [4, 8, 12, 16] });
});

test("a view that the device cannot bind is refused, and can be copied", async (context) => {
  const seen = await onGpu(context, async ({ GpuMemory, Store }, gpu) => {
    const store = await Store.create({ memories: [new GpuMemory(gpu)] });
    const rows = store.put("rows", Float32Array.from({ length: 512 }, (_, index) => index), { device: "webgpu", shape: [2, 256] });
    const odd = gpu.createBuffer({ size: 18, usage: GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC });
    const adopted = store.adopt("odd", odd, { device: "webgpu", shape: [17], dtype: "uint8" });
    const views = { start: rows.view([0, 1], [2, 255]), second: rows.view([1, 0], [1, 256]), adopted };
    const entry = { binding: 0, visibility: GPUShaderStage.COMPUTE, buffer: { type: "read-only-storage" } };
    const layout = gpu.createBindGroupLayout({ entries: [entry] });
    const tried = {};
    for (const [name, view] of Object.entries(views)) {
      // The error of the device for the same range.
      gpu.pushErrorScope("validation");
      gpu.createBindGroup({ layout, entries: [{ binding: 0, resource: view.location() }] });
      const isBound = (await gpu.popErrorScope()) === null;
      try {
        tried[name] = [isBound, view.binding().offset];
      } catch ({ kind, message }) {
        tried[name] = [isBound, `${kind} ${message}`];
      }
    }
    const { buffer, offset, size } = views.start.location();
    const target = store.reserve("copy", { device: "webgpu", shape: [511] });
    const encoder = gpu.createCommandEncoder();
    encoder.copyBufferToBuffer(buffer, offset, target.storage(), 0, size);
    gpu.queue.submit([encoder.finish()]);
    const copied = (await target.publish().read("test")).slice(0, 2);
    store.dispose();
    return { tried, copied: [...copied] };
  });
  if (!seen) return;
  const { start, second, adopted } = seen.tried;
  assert.deepEqual(second, [true, 1024]);
  assert.deepEqual([start[0], adopted[0]], [false, false]);
  assert.match(start[1], /^Unsupported rows: the view begins at byte 4 of its buffer; webgpu binds multiples of 256: copy it from location\(\)/);
  assert.match(adopted[1], /^Unsupported odd: the buffer has 18 bytes; webgpu binds multiples of 4: /);
  assert.deepEqual(seen.copied, [1, 2]);
});

test("sizes that are not multiples of four bytes, and strided views, are read whole", async (context) => {
  const seen = await onGpu(context, async ({ GpuMemory, Store }, gpu) => {
    const store = await Store.create({ memories: [new GpuMemory(gpu)] });
    const bytes = store.put("b", new Uint8Array([1, 2, 3, 4, 5, 6, 7]), { device: "webgpu" });
    const reads = [bytes, bytes.view([3], [3]), bytes.view([1], [3], [2]), bytes.view([7], [0])].map((each) => each.read("test"));
    reads.push(store.put("empty", new Uint8Array(0), { device: "webgpu" }).read("test"));
    // What `binding` gives is a binding: a size that is none would be an error of the device.
    const entry = { binding: 0, visibility: GPUShaderStage.COMPUTE, buffer: { type: "read-only-storage" } };
    gpu.pushErrorScope("validation");
    gpu.createBindGroup({ layout: gpu.createBindGroupLayout({ entries: [entry] }), entries: [{ binding: 0, resource: bytes.binding() }] });
    const refused = (await gpu.popErrorScope())?.message;
    return [...(await Promise.all(reads)).map((each) => [...each]), refused ?? "bound"];
  });
  if (seen) assert.deepEqual(seen, [[1, 2, 3, 4, 5, 6, 7], [4, 5, 6], [2, 4, 6], [], [], "bound"]);
});

test("memory of the GPU is destroyed with the last lease, by eviction, and with the store", async (context) => {
  const seen = await onGpu(context, async ({ GpuMemory, Store }, gpu) => {
    const destroyed = [];
    const create = gpu.createBuffer.bind(gpu);
    gpu.createBuffer = (descriptor) => {
      const buffer = create(descriptor);
      const destroy = buffer.destroy.bind(buffer);
      // Not the four bytes to which an adopted buffer is copied as a test.
      buffer.destroy = () => (descriptor.size > 4 && destroyed.push(descriptor.size), destroy());
      return buffer;
    };
    const store = await Store.create({ memories: [new GpuMemory(gpu)], budgets: { webgpu: 1000 } });
    const put = (name, bytes, options) => store.put(name, new Uint8Array(bytes), { device: "webgpu", ...options });
    put("leased", 100).dispose();
    put("cached", 600, { cached: true }).dispose();
    put("wanted", 500);
    const adopted = store.adopt("adopted", gpu.createBuffer({ size: 32, usage: GPUBufferUsage.COPY_SRC }), { device: "webgpu", shape: [5] });
    const before = [...destroyed];
    const again = (() => {
      try {
        return store.adopt("again", adopted.binding().buffer, { device: "webgpu", shape: [5] });
      } catch ({ kind }) {
        return kind;
      }
    })();
    const shape = adopted.shape;
    store.dispose();
    return { again, before, after: destroyed.slice(before.length).sort((a, b) => a - b), shape };
  });
  if (seen) assert.deepEqual(seen, { again: "Conflict", before: [112, 608], after: [32, 512], shape: [5] });
});

test("a lost device and a tensor beyond its limits are refused", async (context) => {
  const seen = await onGpu(context, async ({ GpuMemory, Store }, gpu) => {
    const store = await Store.create({ memories: [new GpuMemory(gpu)] });
    const refusal = (call) => {
      try {
        return void call();
      } catch ({ kind, message }) {
        return [kind, message];
      }
    };
    const large = refusal(() => store.reserve("x", { device: "webgpu", shape: [gpu.limits.maxBufferSize / 4 + 1] }));
    const used = store.getStats().devices.find(({ device }) => device === "webgpu").memory_usage_bytes;
    const tensor = store.put("y", new Float32Array(4), { device: "webgpu" });
    gpu.destroy();
    await gpu.lost;
    const lost = await tensor.read("test").catch(({ kind, message }) => [kind, message]);
    return { large, used, lost, put: refusal(() => store.put("z", new Float32Array(4), { device: "webgpu" })) };
  });
  if (!seen) return;
  assert.equal(seen.large[0], "Unsupported");
  assert.match(seen.large[1], /maxBufferSize/);
  assert.equal(seen.used, 0);
  for (const [kind, message] of [seen.lost, seen.put]) {
    assert.equal(kind, "Io");
    assert.match(message, /device was lost .* new GPUDevice/);
  }
});

test("buffers that cannot be read are refused, or are errors when they are read", async (context) => {
  const seen = await onGpu(context, async ({ GpuMemory, Store }, gpu) => {
    const store = await Store.create({ memories: [new GpuMemory(gpu)] });
    const options = { device: "webgpu", shape: [4] };
    const buffer = (usage, of = gpu, more = {}) => of.createBuffer({ size: 16, usage, ...more });
    const readable = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC;
    const refusals = [buffer(GPUBufferUsage.STORAGE), buffer(readable, gpu, { mappedAtCreation: true })].map((each, index) => {
      try {
        store.adopt(`refused ${index}`, each, options);
        return "no error";
      } catch ({ kind, message }) {
        return `${kind} ${message}`;
      }
    });
    const destroyed = buffer(readable);
    destroyed.destroy();
    const other = buffer(readable, await (await navigator.gpu.requestAdapter()).requestDevice());
    const errors = [];
    for (const [index, each] of [destroyed, other].entries()) {
      const tensor = store.adopt(`x ${index}`, each, options);
      errors.push(await tensor.read("test").then(() => "no error", ({ kind, message }) => `${kind} ${message}`));
    }
    const later = store.adopt("y", buffer(readable), options);
    later.binding().buffer.destroy();
    errors.push(await later.read("test").then(() => "no error", ({ kind, message }) => `${kind} ${message}`));
    const good = store.adopt("z", buffer(readable | GPUBufferUsage.COPY_DST), options);
    return { refusals, errors, good: [...(await good.read("test"))] };
  });
  if (!seen) return;
  assert.match(seen.refusals[0], /^Invalid the GPUBuffer has no usage COPY_SRC/);
  assert.match(seen.refusals[1], /^Invalid the GPUBuffer is mapped/);
  for (const error of seen.errors) assert.match(error, /^Io the GPU refused the tensor's buffer: ./);
  assert.deepEqual(seen.good, [0, 0, 0, 0]);
});

test("a read that failed leaves its tensor readable, and a call that throws leaves no error scope", async (context) => {
  const seen = await onGpu(context, async ({ GpuMemory, Store }, gpu) => {
    const store = await Store.create({ memories: [new GpuMemory(gpu)] });
    const adopted = store.adopt("x", gpu.createBuffer({ size: 16, usage: GPUBufferUsage.MAP_WRITE | GPUBufferUsage.COPY_SRC }), { device: "webgpu", shape: [4] });
    const { buffer } = adopted.binding();
    const read = () => adopted.read("test").then((values) => [...values], ({ kind }) => kind);
    await buffer.mapAsync(GPUMapMode.WRITE);
    const reads = [await read()];
    buffer.unmap();
    reads.push(await read());
    const create = gpu.createBuffer;
    // As a device without room for the copy.
    gpu.createBuffer = (descriptor) => create.call(gpu, { ...descriptor, usage: 0x10000 });
    gpu.pushErrorScope("validation");
    reads.push(await read());
    await gpu.popErrorScope();
    gpu.createBuffer = create;
    reads.push(await read());
    let scopes = 0;
    const [push, pop] = [gpu.pushErrorScope, gpu.popErrorScope];
    gpu.pushErrorScope = (filter) => ((scopes += 1), push.call(gpu, filter));
    gpu.popErrorScope = () => ((scopes -= 1), pop.call(gpu));
    gpu.queue.writeBuffer = () => {
      throw new DOMException("no room", "OperationError");
    };
    try {
      store.put("y", new Float32Array(4), { device: "webgpu" });
    } catch ({ name }) {
      reads.push(name);
    }
    return { reads, scopes };
  });
  if (seen) assert.deepEqual(seen, { reads: ["Io", [0, 0, 0, 0], "Io", [0, 0, 0, 0], "OperationError"], scopes: 0 });
});

test("half-precision numbers are read as they were put, where the browser has them", async (context) => {
  const seen = await onGpu(context, async ({ GpuMemory, Store }, gpu) => {
    if (!globalThis.Float16Array) return { names: [], values: [] };
    const store = await Store.create({ memories: [new GpuMemory(gpu)] });
    const tensors = ["cpu", "webgpu"].map((device) => store.put(device, Float16Array.of(0.5, -2), { device }));
    const read = await Promise.all(tensors.map((tensor) => tensor.read("test")));
    return { names: read.map(({ constructor }) => constructor.name), values: read.map((each) => [...each]) };
  });
  if (seen?.names.length > 0) assert.deepEqual([seen.names, seen.values], [["Float16Array", "Float16Array"], [[0.5, -2], [0.5, -2]]]);
});

test("the example of README.md prints what it says", async (context) => {
  const readme = await readFile(new URL("../README.md", import.meta.url), "utf8");
  const example = [...readme.matchAll(/^```js\n([^]*?)^```/gm)].map(([, text]) => text).find((text) => text.includes("Store.create"));
  const said = [...example.matchAll(/^console\.log.*\/\/ ([^:\n]+)/gm)].map(([, text]) => text.trim());
  const printed = await onGpu(context, `async () => {
    const lines = [];
    const log = console.log;
    console.log = (line) => lines.push(String(line));
    const url = URL.createObjectURL(new Blob([${JSON.stringify(example)}], { type: "text/javascript" }));
    try {
      await import(url);
    } finally {
      console.log = log;
    }
    return lines;
  }`);
  if (printed) assert.deepEqual([said.length, printed], [4, said]);
});

// The adapter of onnxruntime-web on WebGPU, in a headless Chromium. CHROMIUM names the browser; CYCLES lengthens the test of growth.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { hasWebGpu, openBrowser } from "./support/browsers.mjs";

const CYCLES = Number(process.env.CYCLES ?? 200);
let browser;

before(async () => {
  browser = await openBrowser("chromium");
});

after(() => browser?.close());

/** Runs `program(page, argument)` in the page, where `page` has the exports of support/engine_page.mjs. */
async function inPage(context, program, argument) {
  if (!(await hasWebGpu(browser.page, context))) return undefined;
  return browser.run(`(async () => (${program})(await import("/support/engine_page.mjs"), ${JSON.stringify(argument)}))()`);
}

test("results on the GPU equal the references", async (context) => {
  const cases = [["vit", "model", "b3"], ["vit", "head", "b1"], ["clip", "vision_model", "b1"], ["clip", "text_model", "b3s14"], ["bert", "model", "b1s7"], ["bert", "head", "b3s16"]];
  const seen = await inPage(context, async ({ create }, cases) => {
    const { store, engine, counted } = await create();
    const { errorsOfCases } = await import("/support/checks.mjs");
    const errors = await errorsOfCases(engine, undefined, cases);
    return { errors, sessions: engine.sessionCount, bytes: counted.bytes, names: store.names() };
  }, cases);
  if (!seen) return;
  assert.equal(Object.keys(seen.errors).length, 2 * cases.length);
  for (const [name, error] of Object.entries(seen.errors)) assert.ok(error < 1e-4, `${name}: ${error}`);
  assert.deepEqual([seen.sessions, seen.bytes, seen.names], [0, 0, []], "all memory of the GPU is free");
});

test("two graphs share an embedding on the GPU without a read-back and without a copy", async (context) => {
  const seen = await inPage(context, async ({ create, copies, used }) => {
    const { readGraph, readReference } = await import("/support/models.mjs");
    const { relativeError } = await import("/support/safetensors.mjs");
    const { store, engine, counted } = await create();
    const load = async (name) => engine.load({ files: await readGraph("vit", name), label: name });
    const [trunk, head] = [await load("model"), await load("head")];
    const { inputs } = await readReference("vit", "model.b3");
    const { outputs: [embedding] } = await trunk.run(inputs, ["last_hidden_state"], { holder: "vit" });
    const before = copies(store);
    counted.reset();
    const { outputs: [logits] } = await head.run({ last_hidden_state: embedding }, ["logits"], { holder: "classifier" });
    const result = { calls: { ...counted.counts }, before, after: copies(store), used: used(store), place: [logits.device, logits.holder, logits.shape], holders: embedding.holders };
    const { outputs } = await readReference("vit", "head.b3");
    // The reference of the head belongs to another embedding: the head is checked on that.
    const given = store.put("given", (await readReference("vit", "head.b3")).inputs.last_hidden_state.data, { shape: [3, 17, 32], device: "webgpu" });
    const { outputs: [checked] } = await head.run({ last_hidden_state: given }, ["logits"]);
    const error = relativeError(await checked.read("compare with the reference"), outputs.logits.data);
    await engine.dispose();
    store.dispose();
    return { ...result, error, bytes: counted.bytes };
  });
  if (!seen) return;
  const { submit, writeUniform, ...others } = seen.calls;
  assert.deepEqual(others, {}, "no writeBuffer, copyBufferToBuffer or mapAsync");
  assert.ok(submit >= 1 && writeUniform >= 1);
  assert.deepEqual(seen.before, { "device transfer": [1, 3 * 3 * 32 * 32 * 4] }, "the pixels");
  assert.deepEqual(seen.after, seen.before);
  assert.deepEqual([seen.used, seen.place, seen.holders], [(3 * 17 * 32 + 3 * 10) * 4, ["webgpu", "classifier", [3, 10]], { vit: 1 }]);
  assert.ok(seen.error < 1e-4, `${seen.error}`);
  assert.equal(seen.bytes, 0);
});

test("a graph runs its own programs beside another graph", async (context) => {
  const seen = await inPage(context, async ({ create, one }) => {
    const { store, engine } = await create();
    const bits = (shape, skip) => ({ data: Uint8Array.from({ length: shape[0] * shape[1] }, (_, index) => Number(index % skip !== 1)), shape, dtype: "bool" });
    const found = [];
    // onnxruntime-web 1.30.0 names these two programs alike: the second graph computed with the program of the first.
    for (const [a, b] of [[[2, 1], [2, 8]], [[2, 8], [1, 8]]]) {
      const graph = await engine.load({ files: one("And", { a: ["bool", a], b: ["bool", b] }, { y: ["bool", [2, 8]] }) });
      const [left, right] = [bits(a, 3), bits(b, 5)];
      const { outputs: [y] } = await graph.run({ a: left, b: right }, ["y"]);
      const at = ({ data, shape }, row, column) => data[(shape[0] === 1 ? 0 : row) * shape[1] + (shape[1] === 1 ? 0 : column)];
      const expected = Array.from({ length: 16 }, (_, index) => at(left, index >> 3, index % 8) & at(right, index >> 3, index % 8));
      found.push([[...(await y.read("test"))], expected]);
      y.dispose();
    }
    await engine.dispose();
    store.dispose();
    return found;
  });
  if (!seen) return;
  for (const [actual, expected] of seen) assert.deepEqual(actual.map(Number), expected);
});

test("a view is copied once on the GPU if it must be, and the copy is reported", async (context) => {
  const seen = await inPage(context, async ({ create, copies, negate, used }) => {
    const { store, engine, counted } = await create();
    const graph = await engine.load({ files: negate("float32", ["n", "m"]), label: "negate" });
    const whole = store.put("features", Float32Array.from({ length: 24 }, (_, index) => index), { shape: [4, 6], device: "webgpu", holder: "vit" });
    const results = {};
    const before = copies(store);
    for (const [name, view] of Object.entries({
      whole: whole.view([0, 0], [4, 6]),
      start: whole.view([0, 0], [2, 6]),
      offset: whole.view([2, 0], [2, 6]),
      columns: whole.view([1, 2], [3, 2]),
      steps: whole.view([0, 1], [2, 2], [2, 3]),
    })) {
      counted.reset();
      const { outputs: [y] } = await graph.run({ x: view }, ["y"], { describe: () => ({ name: `y of ${name}` }) });
      const { copyBufferToBuffer = 0, mapAsync = 0 } = counted.counts;
      results[name] = { values: [...(await y.read("test"))].map((each) => -each), shape: y.shape, calls: [copyBufferToBuffer, mapAsync] };
      y.dispose();
      view.dispose();
    }
    const recent = store.getDiagnostics().recent_copies.filter(({ reason }) => reason === "private copy");
    // Bytes that the GPU cannot copy: no multiple of four.
    const bytes = await engine.load({ files: { graph: (await import("/support/onnx.mjs")).onnxModel({ inputs: { x: ["uint8", ["n"]] }, outputs: { y: ["float32", ["n"]] }, nodes: [{ op: "Cast", inputs: ["x"], outputs: ["y"], attributes: { to: 1 } }] }) } });
    const small = store.put("bytes", new Uint8Array([1, 2, 3, 4, 5, 6, 7, 8]), { device: "webgpu" });
    const readBacks = store.getDiagnostics().read_backs.length;
    const { outputs: [odd] } = await bytes.run({ x: small.view([1], [3]) }, ["y"]);
    results.odd = [...(await odd.read("test"))];
    results.reasons = store.getDiagnostics().read_backs.map(({ reason }) => reason).slice(readBacks);
    const left = used(store);
    await engine.dispose();
    store.dispose();
    return { before, results, recent: recent.map(({ tensor, bytes: size }) => [tensor, size]), left };
  });
  if (!seen) return;
  const { whole, start, offset, columns, steps, odd, reasons } = seen.results;
  assert.deepEqual([whole.calls, start.calls, offset.calls, columns.calls, steps.calls], [[0, 0], [0, 0], [1, 0], [3, 0], [4, 0]]);
  assert.deepEqual(offset.values, [12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23]);
  assert.deepEqual([columns.values, columns.shape], [[8, 9, 14, 15, 20, 21], [3, 2]]);
  assert.deepEqual(steps.values, [1, 4, 13, 16]);
  assert.deepEqual(seen.recent, [["features", 48], ["features", 24], ["features", 16]]);
  assert.deepEqual([odd, reasons], [[2, 3, 4], ["view that the device cannot copy, as an input"]]);
  assert.equal(seen.left, 24 * 4 + 8 + 12, "copies of inputs are freed");
});

test("sizes that are not multiples of 16 bytes lose no elements", async (context) => {
  const seen = await inPage(context, async ({ create, negate, floats }) => {
    const { gpu, store, engine } = await create();
    const graph = await engine.load({ files: negate() });
    const lost = [];
    for (const length of [1, 2, 3, 5, 7, 10, 13]) {
      const array = Float32Array.from({ length }, (_, index) => index + 1);
      const buffer = gpu.createBuffer({ size: length * 4, usage: GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST });
      gpu.queue.writeBuffer(buffer, 0, array);
      // A buffer of another program, with exactly the bytes of its elements.
      const adopted = store.adopt(`exact ${length}`, buffer, { device: "webgpu", shape: [length] });
      for (const x of [floats(...array), store.put(`x ${length}`, array, { device: "webgpu" }), adopted]) {
        const { outputs: [y] } = await graph.run({ x }, ["y"]);
        const values = [...(await y.read("test"))];
        if (values.some((value, index) => value !== -array[index])) lost.push([length, values]);
        y.dispose();
      }
    }
    await engine.dispose();
    store.dispose();
    return lost;
  });
  if (seen) assert.deepEqual(seen, []);
});

test("an output of unknown shape is copied once, and its shape is known in the next run", async (context) => {
  const seen = await inPage(context, async ({ create, copies, add, floats, used }) => {
    const { store, engine, counted } = await create();
    const graph = await engine.load({ files: add(), label: "add" });
    const run = async (x, z) => {
      const { outputs: [y] } = await graph.run({ x, z }, ["y"]);
      const result = [[...(await y.read("test"))], copies(store)["engine output"], used(store)];
      y.dispose();
      return result;
    };
    const [one, three] = [floats(10), floats(1, 2, 3)];
    const results = [await run(one, three), await run(one, three), await run(three, one), await run(one, one)];
    await engine.dispose();
    store.dispose();
    return { results, bytes: counted.bytes };
  });
  if (!seen) return;
  assert.deepEqual(seen.results, [
    [[11, 12, 13], [1, 12], 12],
    [[11, 12, 13], [1, 12], 12],
    [[11, 12, 13], [2, 24], 12],
    [[20], [3, 28], 4],
  ]);
  assert.equal(seen.bytes, 0);
});

test("after a failed run the session is opened again, and never computes with old inputs", async (context) => {
  const seen = await inPage(context, async ({ create, add, negate, floats, failure, used }) => {
    const { store, engine, counted } = await create();
    let reads = 0;
    const again = await engine.load({ files: () => ((reads += 1), add()), key: "add", label: "again" });
    const plain = await engine.load({ files: add(), key: "plain", label: "plain" });
    const result = { errors: [], values: [] };
    const value = async (graph, x, z) => {
      const { outputs: [y] } = await graph.run({ x, z }, ["y"]);
      result.values.push([...(await y.read("test"))]);
      y.dispose();
    };
    for (const graph of [again, plain]) {
      await value(graph, floats(1, 2), floats(3, 4));
      result.errors.push(await failure(() => graph.run({ x: floats(1, 2, 3), z: floats(1, 2) }, ["y"])));
    }
    await value(again, floats(5, 6), floats(1, 1));
    result.errors.push(await failure(() => plain.run({ x: floats(5, 6), z: floats(1, 1) }, ["y"])));
    const loaded = await engine.load({ files: add(), key: "plain" });
    await value(loaded, floats(7), floats(1));
    // Wrong declarations: the library refuses memory of the declared size.
    const wrong = await engine.load({ files: () => add("a"), key: "wrong" });
    await value(wrong, floats(1), floats(1, 2, 3));
    await value(wrong, floats(1), floats(1, 2, 3));
    result.used = used(store);
    result.reads = reads;
    await Promise.all([again, plain, loaded, wrong].map((graph) => graph.release()));
    result.sessions = engine.sessionCount;
    result.bytes = counted.bytes;
    store.dispose();
    return result;
  });
  if (!seen) return;
  assert.deepEqual(seen.errors.map(([kind]) => kind), ["Engine", "Engine", "Engine"]);
  assert.match(seen.errors[0][1], /again: onnxruntime-web: .*broadcast/);
  assert.match(seen.errors[2][1], /load it with a function/);
  assert.deepEqual(seen.values, [[4, 6], [4, 6], [6, 7], [8], [2, 3, 4], [2, 3, 4]]);
  assert.deepEqual([seen.used, seen.reads, seen.sessions, seen.bytes], [0, 2, 0, 0]);
});

test("ids stay on the host, and types without memory on the GPU too", async (context) => {
  const seen = await inPage(context, async ({ create, copies, one, ort, floats }) => {
    const { store, engine, counted } = await create();
    const { onnxModel } = await import("/support/onnx.mjs");
    const rows = new Float32Array([1, 2, 3, 4, 5, 6]);
    const gather = await engine.load({
      files: { graph: onnxModel({ inputs: { ids: ["int64", ["n"]] }, outputs: { y: ["float32", ["n", 2]] }, nodes: [{ op: "Gather", inputs: ["rows", "ids"], outputs: ["y"] }], weights: { rows: ["float32", [3, 2], rows] } }) },
    });
    const ids = new BigInt64Array([2n, 0n]);
    const results = {};
    for (const [name, value] of [["array", { data: ids, shape: [2] }], ["host", store.put("ids", ids)], ["gpu", store.put("ids on the GPU", ids, { device: "webgpu" })]]) {
      const { outputs: [y] } = await gather.run({ ids: value }, ["y"]);
      results[name] = [...(await y.read("test"))];
    }
    results.copies = copies(store);
    const cast = async (to, name) => {
      const graph = await engine.load({ files: one("Cast", { x: ["float32", ["n"]] }, { y: [name, ["n"]] }, { attributes: { to } }) });
      const { outputs: [y] } = await graph.run({ x: floats(3, 4) }, ["y"]);
      return [y.device, y.dtype, [...(y.device === "cpu" ? y.array() : await y.read("test"))].map(Number)];
    };
    results.casts = [await cast(7, "int64"), await cast(6, "int32"), await cast(3, "int8")];
    const empty = await (await engine.load({ files: one("Neg", { x: ["float32", ["n"]] }, { y: ["float32", ["n"]] }) })).run({ x: floats() }, ["y"]);
    results.empty = empty.outputs[0].shape;
    await engine.dispose();
    store.dispose();
    return { ...results, bytes: counted.bytes };
  });
  if (!seen) return;
  for (const name of ["array", "host", "gpu"]) assert.deepEqual(seen[name], [5, 6, 1, 2]);
  // Two tensors were put; the three results were read.
  assert.deepEqual(seen.copies, { put: [1, 16], "device transfer": [4, 16 + 3 * 16] });
  assert.deepEqual(seen.casts, [["webgpu", "int64", [3, 4]], ["webgpu", "int32", [3, 4]], ["cpu", "int8", [3, 4]]]);
  assert.deepEqual([seen.empty, seen.bytes], [[0], 0]);
});

test("a graph on the host reads a tensor of the GPU back, once and with a reason", async (context) => {
  const seen = await inPage(context, async ({ create, negate, ort, floats }) => {
    const { OrtEngine } = await import("/index.js");
    const { store, engine } = await create();
    const host = OrtEngine.create({ ort, store, provider: "wasm" });
    const [first, second] = [await engine.load({ files: negate() }), await host.load({ files: negate() })];
    const { outputs: [y] } = await first.run({ x: floats(1, 2, 3) }, ["y"]);
    const { outputs: [z] } = await second.run({ x: y }, ["y"]);
    const back = await first.run({ x: z }, ["y"]);
    const result = { z: [z.device, [...z.array()]], back: [...(await back.outputs[0].read("test"))], reads: store.getDiagnostics().recent_read_backs };
    await engine.dispose();
    await host.dispose();
    store.dispose();
    return result;
  });
  if (!seen) return;
  assert.deepEqual([seen.z, seen.back], [["cpu", [1, 2, 3]], [-1, -2, -3]]);
  assert.deepEqual(seen.reads[0], { tensor: "graph/y", reason: "input of a graph that runs on the host", bytes: 12 });
});

test("concurrent runs of two graphs give each caller its result", async (context) => {
  const seen = await inPage(context, async ({ create, negate, add, floats }) => {
    const { store, engine, counted } = await create();
    const [first, second] = await Promise.all([engine.load({ files: negate() }), engine.load({ files: add() })]);
    /** Negates for even numbers, adds for odd ones. */
    const call = async (index) => {
      const inputs = { x: floats(index, 1), ...(index % 2 === 0 ? {} : { z: floats(100, 100) }) };
      const { outputs: [y] } = await (index % 2 === 0 ? first : second).run(inputs, ["y"]);
      const values = [...(await y.read("test"))];
      y.dispose();
      return values;
    };
    const values = await Promise.all(Array.from({ length: 20 }, (_, index) => call(index + 1)));
    await Promise.all([first.release(), second.release()]);
    store.dispose();
    return { values, bytes: counted.bytes };
  });
  if (!seen) return;
  assert.deepEqual(seen.values, Array.from({ length: 20 }, (_, index) => (index % 2 === 1 ? [-index - 1, -1] : [index + 101, 101])));
  assert.equal(seen.bytes, 0);
});

test("cycles of load, run and release leave no memory of the GPU", async (context) => {
  const seen = await inPage(context, async ({ create }, cycles) => {
    const { readGraph, readReference } = await import("/support/models.mjs");
    const { store, engine, counted } = await create();
    const [files, { inputs }] = [await readGraph("vit", "head"), await readReference("vit", "head.b3")];
    const marks = [];
    for (let cycle = 0; cycle < cycles; cycle += 1) {
      const graph = await engine.load({ files, key: "head" });
      const { outputs: [y] } = await graph.run(inputs, ["logits"]);
      await graph.release();
      y.dispose();
      marks.push(counted.bytes);
    }
    store.dispose();
    return { bytes: [...new Set(marks)], cycles: marks.length };
  }, CYCLES);
  if (!seen) return;
  context.diagnostic(`${seen.cycles} cycles`);
  assert.deepEqual(seen.bytes, [0]);
});

test("graphs, tensors, the engine and the store end in any order, and the device stays", async (context) => {
  const seen = await inPage(context, async ({ create, negate, floats, failure }) => {
    const results = [];
    const orders = (items) => (items.length === 0 ? [[]] : items.flatMap((item) => orders(items.filter((each) => each !== item)).map((rest) => [item, ...rest])));
    let counts;
    for (const [index, order] of orders(["graph", "input", "engine", "store"]).entries()) {
      const { gpu, store, engine, counted } = await create();
      counts = counted;
      const graph = await engine.load({ files: negate() });
      const input = store.put("x", new Float32Array([1, 2]), { device: "webgpu" });
      const waiting = Promise.allSettled([graph.run({ x: input }, ["y"]), graph.run({ x: input }, ["y"])]);
      // Half of the orders while runs wait.
      if (index % 2 === 0) await waiting;
      const steps = { graph: () => graph.release(), input: () => input.dispose(), engine: () => engine.dispose(), store: () => store.dispose() };
      const ended = [];
      for (const step of order) ended.push(steps[step]());
      await Promise.all(ended);
      for (const { status, reason } of await waiting) if (status === "rejected" && reason.kind !== "Conflict") results.push([order, String(reason)]);
      if (counted.bytes !== 0) results.push([order, `${counted.bytes} bytes`]);
      const late = await failure(() => graph.run({ x: floats(1) }, ["y"]));
      if (late[0] !== "Conflict") results.push([order, late]);
      if ((await Promise.race([gpu.lost, "alive"])) !== "alive") results.push([order, "the device was destroyed"]);
    }
    const { store, engine } = await create();
    const graph = await engine.load({ files: negate() });
    const { outputs: [y] } = await graph.run({ x: floats(4) }, ["y"]);
    const value = [...(await y.read("test"))];
    await engine.dispose();
    store.dispose();
    return { results, value, bytes: counts.bytes };
  });
  if (seen) assert.deepEqual(seen, { results: [], value: [-4], bytes: 0 });
});

test("a device that is lost during a run ends its calls with a way out, and another device runs", async (context) => {
  const seen = await inPage(context, async ({ create, newGpu, failure }) => {
    const { readGraph, readReference } = await import("/support/models.mjs");
    const device = await newGpu();
    const { gpu, store, engine } = await create({}, device);
    const files = await readGraph("vit", "head");
    const graph = await engine.load({ files });
    const { inputs } = await readReference("vit", "head.b3");
    await graph.run(inputs, ["logits"]);
    const calls = [1, 2, 3].map(() => failure(() => graph.run(inputs, ["logits"])));
    gpu.destroy();
    const result = { during: await Promise.all(calls) };
    result.after = await failure(() => graph.run(inputs, ["logits"]));
    result.load = await failure(() => engine.load({ files }));
    await graph.release();
    result.sessions = engine.sessionCount;
    const names = store.names().length;
    store.dispose();
    // A new device, while the former one is gone.
    const other = await create({}, await newGpu());
    const again = await other.engine.load({ files });
    const { outputs } = await again.run(inputs, ["logits"]);
    result.again = (await outputs[0].read("test")).length;
    await other.engine.dispose();
    other.store.dispose();
    return { ...result, names, bytes: other.counted.bytes };
  });
  if (!seen) return;
  for (const [kind, message] of [...seen.during, seen.after, seen.load]) {
    assert.equal(kind, "Io");
    assert.match(message, /GPU device was lost .*new GPUDevice, and load the graphs again/);
  }
  assert.deepEqual([seen.sessions, seen.names, seen.again, seen.bytes], [0, 1, 30, 0]);
});

test("no room on the GPU refuses a run and leaves nothing", async (context) => {
  const seen = await inPage(context, async ({ create, negate, floats, failure, used }) => {
    const results = {};
    for (const [name, options, limit] of [["budget", { budgets: { webgpu: 64 } }], ["limit", {}, 64]]) {
      const { gpu, store, engine, counted } = await create(options);
      const graph = await engine.load({ files: negate(), label: "negate" });
      const bytes = counted.bytes;
      if (limit) Object.defineProperty(gpu, "limits", { configurable: true, value: { maxBufferSize: limit } });
      const long = floats(...Array.from({ length: 20 }, (_, index) => index));
      results[name] = [await failure(() => graph.run({ x: long }, ["y"])), used(store), counted.bytes - bytes];
      const { outputs: [y] } = await graph.run({ x: floats(1, 2) }, ["y"]);
      results[name].push([...(await y.read("test"))]);
      if (limit) delete gpu.limits;
      await engine.dispose();
      store.dispose();
    }
    // A device that has no memory left: its buffers are invalid, and each use of one fails.
    const { gpu, store, engine, counted } = await create();
    const graph = await engine.load({ files: () => negate(), key: "full", label: "negate" });
    const input = store.put("x", new Float32Array([1, 2]), { device: "webgpu" });
    const { createBuffer } = gpu;
    gpu.createBuffer = (descriptor) => createBuffer.call(gpu, descriptor.usage & GPUBufferUsage.STORAGE ? { ...descriptor, usage: 0x10000 } : descriptor);
    results.full = await failure(() => graph.run({ x: input }, ["y"]));
    gpu.createBuffer = createBuffer;
    const { outputs: [y] } = await graph.run({ x: input }, ["y"]);
    results.full.push([...(await y.read("test"))], used(store), store.names());
    await engine.dispose();
    store.dispose();
    return { ...results, bytes: counted.bytes };
  });
  if (!seen) return;
  assert.equal(seen.budget[0][0], "OverBudget");
  assert.match(seen.budget[0][1], /negate/);
  assert.equal(seen.limit[0][0], "Unsupported");
  assert.match(seen.limit[0][1], /maxBufferSize/);
  for (const [, used, bytes, values] of [seen.budget, seen.limit]) assert.deepEqual([used, bytes, values], [0, 0, [-1, -2]]);
  assert.equal(seen.full[0], "Engine");
  assert.match(seen.full[1], /negate: onnxruntime-web/);
  assert.deepEqual(seen.full.slice(2), [[-1, -2], 16, ["negate/y", "x"]]);
  assert.equal(seen.bytes, 0);
});

test("a graph refuses an adopted buffer that is destroyed, or of another device", async (context) => {
  const seen = await inPage(context, async ({ create, negate, failure }) => {
    const { gpu, store, engine } = await create();
    const graph = await engine.load({ files: () => negate(), key: "adopted", label: "negate" });
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC;
    const buffer = (of, size = 16) => of.createBuffer({ size, usage });
    const other = await (await navigator.gpu.requestAdapter()).requestDevice();
    const later = store.adopt("later", buffer(gpu), { device: "webgpu", shape: [4] });
    const part = store.adopt("part", buffer(gpu, 32), { device: "webgpu", shape: [8] });
    for (const tensor of [later, part]) tensor.binding().buffer.destroy();
    const inputs = [later, store.adopt("other", buffer(other), { device: "webgpu", shape: [4] }), part.view([4], [4])];
    const errors = [];
    for (const x of inputs) errors.push(await failure(() => graph.run({ x }, ["y"])));
    const good = store.adopt("good", buffer(gpu), { device: "webgpu", shape: [4] });
    const { outputs: [y] } = await graph.run({ x: good }, ["y"]);
    const values = [...(await y.read("test"))].map(Math.abs);
    y.dispose();
    await engine.dispose();
    store.dispose();
    return { errors, values };
  });
  if (!seen) return;
  for (const [kind, message] of seen.errors) assert.match(`${kind} ${message}`, /^Io the GPU refused the tensor's buffer: ./);
  assert.deepEqual(seen.values, [0, 0, 0, 0]);
});

test("the second user of an encoder runs nothing, and its result stays on the GPU", async (context) => {
  const seen = await inPage(context, async ({ create, copies }) => {
    const { Computations, Stage } = await import("/index.js");
    const { readGraph, readReference } = await import("/support/models.mjs");
    const { store, engine, counted } = await create();
    const text = (...parts) => JSON.stringify(parts);
    const digits = (value) => Array.from(new TextEncoder().encode(value)).reduce((hash, byte) => (hash * 31n + BigInt(byte)) % 2n ** 256n, 7n).toString(16).padStart(64, "0");
    const hashes = { stageKey: (parts) => digits(text(parts)), identity: (...parts) => digits(text(parts[0], parts[1], [...parts[2]])), provenance: (key, index) => digits(text(key, index)) };
    const graph = await engine.load({ files: await readGraph("vit", "model"), label: "trunk" });
    const stage = new Stage({ role: "trunk", kind: "vision_embedding", space: "a".repeat(64), computations: new Computations(store), hashes, graph });
    const { inputs } = await readReference("vit", "model.b3");
    const runs = await Promise.all(["vit", "clip"].map((holder) => stage.run(inputs, ["last_hidden_state"], holder)));
    counted.reset();
    const third = await stage.run(inputs, ["last_hidden_state"], "detr");
    const result = { computed: [...runs, third].map((run) => run.computed), calls: { ...counted.counts }, device: third.outputs[0].device, copies: copies(store) };
    const same = new Set([...runs, third].map(({ outputs }) => outputs[0].binding().buffer)).size;
    await engine.dispose();
    store.dispose();
    return { ...result, same, bytes: counted.bytes };
  });
  if (!seen) return;
  assert.deepEqual(seen.computed, [true, false, false]);
  assert.deepEqual([seen.calls, seen.device, seen.same, seen.bytes], [{}, "webgpu", 1, 0]);
  assert.deepEqual(seen.copies, { "device transfer": [1, 3 * 3 * 32 * 32 * 4] });
});

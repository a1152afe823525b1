// Memory and graphs on WebNN, in a Chromium that has it: that of WEBNN_CHROMIUM, or of the package @sparticuz/chromium.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openBrowser } from "./support/browsers.mjs";

let browser;

before(async () => {
  browser = await openBrowser("webnn");
  assert.ok(await browser.run(() => Boolean(navigator.ml)), "the browser has no WebNN");
});

after(() => browser?.close());

/** Runs `program(page, argument)` in the page, where `page` has the exports of support/webnn_page.mjs. */
const inPage = (program, argument) => browser.run(`(async () => (${program})(await import("/support/webnn_page.mjs"), ${JSON.stringify(argument)}))()`);

test("an MLTensor is a tensor of the store: put, read, viewed, adopted and destroyed", async () => {
  const seen = await inPage(async ({ create, failure }) => {
    const { context, counted, store } = await create({ budgets: { webnn: 100 } });
    const result = {};
    const tensor = store.put("x", Float32Array.from({ length: 12 }, (_, index) => index), { shape: [3, 4], device: "webnn", holder: "vit" });
    const view = store.get("x", "clip").view([1, 1], [2, 2]);
    result.values = [[...(await tensor.read("test"))], [...(await view.read("test"))]];
    const { buffer } = tensor.binding();
    result.mlTensor = [(await buffer.ready).dataType, (await buffer.ready).shape, buffer.byteLength];
    result.copies = store.getDiagnostics().copies;
    result.zeros = [...(await store.reserve("zeros", { shape: [3], dtype: "int64", device: "webnn" }).publish().read("test"))].map(Number);
    const made = await context.createTensor({ dataType: "float32", shape: [2], readable: true, writable: true });
    context.writeTensor(made, new Float32Array([7, 8]));
    result.adopted = [...(await store.adopt("made", made, { device: "webnn", shape: [2] }).read("test"))];
    result.errors = [
      await failure(() => store.adopt("again", made, { device: "webnn", shape: [2] })),
      await failure(() => store.adopt("shape", made, { device: "webnn", shape: [1, 2] })),
      await failure(() => store.adopt("array", new Float32Array(2), { device: "webnn", shape: [2] })),
      await failure(() => store.put("doubles", new Float64Array(2), { device: "webnn" })),
      await failure(() => store.put("large", new Float32Array(30), { device: "webnn" })),
      await failure(() => store.reserve("empty", { shape: [0], device: "webnn" }).publish().read("test")),
    ];
    store.dispose();
    await counted.settled();
    return { ...result, live: counted.live };
  });
  assert.deepEqual(seen.values, [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], [5, 6, 9, 10]]);
  assert.deepEqual(seen.mlTensor, ["float32", [3, 4], 48]);
  assert.deepEqual(seen.copies, [{ reason: "device transfer", count: 3, bytes: 48 + 48 + 24 }]);
  assert.deepEqual([seen.zeros, seen.adopted], [[0, 0, 0], [7, 8]]);
  const [again, shape, array, doubles, large, empty] = seen.errors;
  assert.deepEqual([again[0], shape[0], array[0], doubles[0], large[0], empty[0]], ["Conflict", "Invalid", "Invalid", "Unsupported", "OverBudget", "Io"]);
  assert.match(shape[1], /the MLTensor is float32 \[2\], the tensor float32 \[1, 2\]/);
  assert.match(array[1], /not memory of webnn/);
  assert.match(doubles[1], /WebNN has no float64/);
  assert.match(empty[1], /WebNN made no float32 tensor of shape \[0\]/);
  assert.equal(seen.live, 0);
});

test("results on WebNN equal the references", async () => {
  const seen = await inPage(async ({ create }) => {
    const { counted, store, engine } = await create();
    const { CASES, errorsOfCases } = await import("/support/checks.mjs");
    // The values of the symbols: WebNN computes with fixed shapes.
    const dimensions = (inputs) => {
      const [batch, sequence] = Object.values(inputs)[0].shape;
      return { batch, sequence };
    };
    const errors = await errorsOfCases(engine, dimensions);
    await engine.dispose();
    store.dispose();
    await counted.settled();
    return { errors, cases: CASES.length, dispatches: counted.counts.dispatch, live: counted.live };
  });
  assert.equal(Object.keys(seen.errors).length, 2 * seen.cases);
  for (const [name, error] of Object.entries(seen.errors)) assert.ok(error < 1e-4, `${name}: ${error}`);
  assert.ok(seen.dispatches >= 2 * seen.cases, "each run is one of WebNN");
  assert.equal(seen.live, 0);
});

test("two graphs share an MLTensor without a read and without a write", async () => {
  const seen = await inPage(async ({ create, copies }) => {
    const { readGraph, readReference } = await import("/support/models.mjs");
    const { counted, store, engine } = await create();
    const load = async (name) => engine.load({ files: await readGraph("vit", name), label: name, dimensions: { batch: 3 } });
    const [trunk, head] = [await load("model"), await load("head")];
    const { inputs } = await readReference("vit", "model.b3");
    const { outputs: [embedding] } = await trunk.run(inputs, ["last_hidden_state"], { holder: "vit" });
    const before = copies(store);
    counted.reset();
    const { outputs: [logits] } = await head.run({ last_hidden_state: embedding }, ["logits"], { holder: "classifier" });
    const result = { calls: { ...counted.counts }, before, after: copies(store), device: logits.device };
    // The embedding outlives the session that made it.
    await trunk.release();
    const again = await head.run({ last_hidden_state: embedding }, ["logits"]);
    const [first, second] = [await logits.read("test"), await again.outputs[0].read("test")];
    result.equal = first.every((value, index) => value === second[index]) && first.length === 30;
    await engine.dispose();
    store.dispose();
    await counted.settled();
    return { ...result, live: counted.live };
  });
  assert.deepEqual(seen.calls, { createTensor: 1, dispatch: 1 });
  assert.deepEqual(seen.before, { "device transfer": [1, 3 * 3 * 32 * 32 * 4] }, "the pixels");
  assert.deepEqual(seen.after, seen.before);
  assert.deepEqual([seen.device, seen.equal, seen.live], ["webnn", true, 0]);
});

test("a view of an MLTensor goes through the host, with its reason", async () => {
  const seen = await inPage(async ({ create, negate }) => {
    const { store, engine } = await create();
    const graph = await engine.load({ files: negate("float32", [2, 2]), label: "negate" });
    const tensor = store.put("x", Float32Array.from({ length: 8 }, (_, index) => index), { shape: [4, 2], device: "webnn" });
    const { outputs: [y] } = await graph.run({ x: tensor.view([1, 0], [2, 2]) }, ["y"]);
    const result = { reads: store.getDiagnostics().read_backs, values: [...(await y.read("test"))] };
    const ids = await engine.load({ files: negate("int64", [2]), label: "ids" });
    const { outputs } = await ids.run({ x: { data: new BigInt64Array([1n, -2n]), shape: [2] } }, ["y"]);
    result.ids = [...(outputs[0].device === "cpu" ? outputs[0].array() : await outputs[0].read("test"))].map(Number);
    await engine.dispose();
    store.dispose();
    return result;
  });
  assert.deepEqual(seen.values, [-2, -3, -4, -5]);
  assert.deepEqual(seen.reads, [{ reason: "view that the device cannot copy, as an input", count: 1, bytes: 16 }]);
  assert.deepEqual(seen.ids, [-1, 2]);
});

test("a context that is lost ends its calls with a way out, and another context runs", async () => {
  const seen = await inPage(async ({ create, negate, failure, newContext }) => {
    const { context, store, engine } = await create({}, await newContext());
    const graph = await engine.load({ files: negate("float32", [2]) });
    const x = { data: new Float32Array([1, 2]), shape: [2] };
    const { outputs: [y] } = await graph.run({ x }, ["y"]);
    const calls = [1, 2].map(() => failure(() => graph.run({ x }, ["y"])));
    context.destroy();
    await context.lost;
    const result = { calls: await Promise.all(calls) };
    result.after = await failure(() => graph.run({ x }, ["y"]));
    result.read = await failure(() => y.read("test"));
    await graph.release();
    store.dispose();
    const other = await create({}, await newContext());
    const again = await other.engine.load({ files: negate("float32", [2]) });
    const { outputs } = await again.run({ x }, ["y"]);
    result.values = [...(await outputs[0].read("test"))];
    await other.engine.dispose();
    other.store.dispose();
    return result;
  });
  // A run may have finished before the context was lost.
  for (const [kind, message] of seen.calls) assert.ok(kind === "none" || (kind === "Io" && /context was lost/.test(message)), message);
  for (const [kind, message] of [seen.after, seen.read]) {
    assert.equal(kind, "Io");
    assert.match(message, /WebNN context was lost .*new MLContext/);
  }
  assert.deepEqual(seen.values, [-1, -2]);
});

test("cycles of load, run and release leave no MLTensor", async () => {
  const seen = await inPage(async ({ create, negate }) => {
    const { counted, store, engine } = await create();
    const x = { data: new Float32Array([1, 2]), shape: [2] };
    for (let cycle = 0; cycle < 100; cycle += 1) {
      const graph = await engine.load({ files: negate("float32", [2]), key: "negate" });
      const { outputs: [y] } = await graph.run({ x }, ["y"]);
      await graph.release();
      y.dispose();
    }
    await counted.settled();
    const { live } = counted;
    store.dispose();
    return live;
  });
  assert.equal(seen, 0);
});

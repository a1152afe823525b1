// Pipelines of transformers.js in Chromium that share sessions and results.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openBrowser } from "./support/browsers.mjs";

let site;
before(async () => (site = await openBrowser("chromium")));
after(() => site?.close());

/** Runs `program({ make, shareWith, Store })`; `make` opens a pipeline of a small model. */
const inPage = (program) =>
  site.page.evaluate(`(async () => {
    const { shareWith, Store } = await import("cotensor");
    const transformers = await import("/transformers/transformers.web.min.js");
    const { env, pipeline } = transformers;
    Object.assign(env, { localModelPath: "/fixtures/tiny/", allowRemoteModels: false, allowLocalModels: true, useBrowserCache: false, useWasmCache: false });
    env.backends.onnx.wasm.wasmPaths = "/ort/";
    const make = (model) => pipeline("feature-extraction", model, { dtype: "fp32", device: "wasm", use_external_data_format: true });
    return (${program})({ make, shareWith, Store });
  })()`);

test("two pipelines of one model have one session, and equal texts run once", async () => {
  const seen = await inPage(async ({ make, shareWith, Store }) => {
    const plain = await make("bert");
    const expected = [...(await plain("a photo of a cat")).data];
    const store = await Store.create();
    const [first, second] = [await make("bert"), await make("bert")];
    const group = await shareWith(first, { store });
    await shareWith(second, { store });
    const results = [];
    for (const each of [first, second, first, second]) results.push([...(await each("a photo of a cat")).data]);
    const report = group.report();
    await second("another text");
    const after = group.report();
    await first.dispose();
    const alone = [...(await second("a photo of a cat")).data];
    await second.dispose();
    return { equal: [...results, alone].every((each) => each.length === expected.length && each.every((value, index) => value === expected[index])), report, after, left: group.report().sessions, bytes: store.getStats().memory_usage_bytes };
  });
  assert.ok(seen.equal, "shared results equal the library's own");
  // The second pipeline runs its own session once, to compare.
  assert.deepEqual(seen.report, { sessions: 1, released: 1, computed: 2, reused: 5 });
  assert.equal(seen.after.computed, 3);
  assert.equal(seen.left, 0);
  assert.ok(seen.bytes > 0, "results stay until their memory is needed");
});

test("a caller's changes do not reach others", async () => {
  const seen = await inPage(async ({ make, shareWith, Store }) => {
    const bert = await make("bert");
    const group = await shareWith(bert, { store: await Store.create() });
    const inputs = await bert.tokenizer("a photo of a cat");
    const feeds = Object.fromEntries(Object.entries(inputs).map(([name, tensor]) => [name, tensor.ort_tensor]));
    const run = async () => (await bert.model.sessions.model.run(feeds)).last_hidden_state.data;
    const [first, second] = [await run(), await run()];
    second[0] = 12345;
    return { first: first[0], third: (await run())[0], report: group.report() };
  });
  assert.equal(seen.third, seen.first);
  assert.deepEqual(seen.report, { sessions: 1, released: 0, computed: 1, reused: 3 });
});

test("sessions with other weights stay apart, and a failed run is tried again", async () => {
  const seen = await inPage(async ({ shareWith, Store }) => {
    class FakeTensor {
      constructor(type, data, dims) {
        Object.assign(this, { type, data, dims, location: "cpu" });
      }
    }
    let released = 0;
    const fake = (weight, failures = 0) => {
      const run = async ({ x }) => {
        if ((failures -= 1) >= 0) throw new Error("no memory");
        return { y: new FakeTensor("float32", x.data.map((each) => each * weight), [1]) };
      };
      return { model: { sessions: { model: { inputNames: ["x"], outputNames: ["y"], run, release: () => void (released += 1) } } } };
    };
    const store = await Store.create();
    const pipelines = [fake(2), fake(3), fake(2, 1)];
    const group = (await Promise.all(pipelines.map((each) => shareWith(each, { store })))).at(-1);
    const run = ({ model }, x) => model.sessions.model.run({ x: new FakeTensor("float32", new Float32Array([x]), [1]) }).then(({ y }) => y.data[0], ({ message }) => message);
    const values = [];
    for (const each of [...pipelines, pipelines[2]]) values.push(await run(each, 5));
    for (const { model } of pipelines) await model.sessions.model.release();
    return { values, released, report: group.report() };
  });
  assert.deepEqual(seen.values, [10, 15, "no memory", 10]);
  assert.deepEqual([seen.released, seen.report.sessions], [3, 0]);
});

// Sharing of pipelines, with sessions that multiply.
import assert from "node:assert/strict";
import { test } from "node:test";
import { shareWith, Store } from "cotensor";

class FakeTensor {
  constructor(type, data, dims) {
    Object.assign(this, { type, data, dims, location: "cpu" });
  }
}
const feeds = (x) => ({ x: new FakeTensor("float32", new Float32Array([x]), [1]) });

/** A pipeline whose graph multiplies by `weight`. A released session refuses to run. `before` is awaited in each run. */
function pipeline(weight, { before = () => undefined } = {}) {
  const session = { inputNames: ["x"], outputNames: ["y", "z"], released: 0, runs: 0, release: () => void (session.released += 1) };
  session.run = async ({ x }) => {
    if (session.released > 0) throw new Error("the session was released");
    session.runs += 1;
    await before();
    return Object.fromEntries(session.outputNames.map((name) => [name, new FakeTensor("float32", x.data.map((each) => each * weight), [1])]));
  };
  const made = { session, model: { sessions: { model: session } } };
  return Object.assign(made, { run: (x) => made.model.sessions.model.run(feeds(x)).then(({ y }) => y.data[0]), release: () => made.model.sessions.model.release() });
}

test("a pipeline that is released while another one is compared with it leaves its session", async () => {
  const store = await Store.create();
  const released = [];
  let isCompared = false;
  const first = pipeline(2, { before: () => isCompared && released.push(first.release()) });
  const second = pipeline(2);
  const group = await shareWith(first, { store });
  await shareWith(second, { store });
  await first.run(1);
  isCompared = true;
  assert.equal(await second.run(5), 10);
  await Promise.all(released);
  isCompared = false;
  assert.equal(await second.run(7), 14, "a new input runs");
  assert.equal(group.report().sessions, 1);
  await second.release();
  await second.release();
  assert.deepEqual([first.session.released, second.session.released, group.report().sessions], [1, 1, 0]);
});

test("a pipeline that is released twice counts once", async () => {
  const store = await Store.create();
  const [first, second] = [pipeline(3), pipeline(3)];
  for (const each of [first, second]) {
    await shareWith(each, { store });
    await each.run(1);
  }
  await second.release();
  await second.release();
  assert.equal(await first.run(2), 6);
});

test("a result that the store has no room for is given to its caller", async () => {
  for (const options of [{ budgets: { cpu: 4 } }, { sharedTensorConfig: { maxSharedTensorSize: 2 } }]) {
    const store = await Store.create(options);
    const held = options.budgets && store.put("held", new Uint8Array(2));
    const [first, second] = [pipeline(4), pipeline(4)];
    const group = await shareWith(first, { store });
    await shareWith(second, { store });
    assert.deepEqual([await first.run(1), await second.run(1), await first.run(2), await second.run(2)], [4, 4, 8, 8]);
    assert.equal(group.report().sessions, 1);
    held?.dispose();
    assert.deepEqual(store.getDiagnostics().tensors.filter(({ holders }) => Object.keys(holders).length > 0), []);
  }
});

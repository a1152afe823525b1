// The time of a lookup with its lease and release from JavaScript: `node web/benches/lookup.mjs`.
import { Store } from "cotensor";

const NAMES = 1000;
const CALLS = 200_000;
const RUNS = 7;

const store = await Store.create();
const tensors = Array.from({ length: NAMES }, (_, index) => store.put(`model/layer.${index}/weight`, new Float32Array(16)));
const names = tensors.map((tensor) => tensor.name);

function nanoseconds(call) {
  const start = performance.now();
  for (let index = 0; index < CALLS; index += 1) call(names[index % NAMES]);
  return ((performance.now() - start) * 1e6) / CALLS;
}

function report(what, call) {
  const runs = Array.from({ length: RUNS }, () => nanoseconds(call)).sort((a, b) => a - b);
  const [best, median] = [runs[0], runs[RUNS >> 1]].map((each) => each.toFixed(0).padStart(6));
  console.log(`${what.padEnd(32)} median ${median} ns, best ${best} ns`);
}

report("lookup + lease + release", (name) => store.get(name, "reader").dispose());
report("the same, and its array", (name) => {
  const tensor = store.get(name, "reader");
  tensor.array();
  tensor.dispose();
});
report("lookup of a missing name", (name) => store.has(name.slice(1)));
report("put + dispose of 64 bytes", () => store.put("x", new Float32Array(16)).dispose());

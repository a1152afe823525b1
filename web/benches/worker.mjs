// Calls of the hub beside bare messages, in Chromium: `CHROMIUM=... node web/benches/worker.mjs`.
import { crash, openTabs } from "../tests/support/tabs.mjs";

const ROUNDS = 7;
const site = await openTabs();
const page = await site.tab();

/** Microseconds of each call, from the median of rounds in which all calls take turns. */
const times = await page.evaluate(async (rounds) => {
  const echo = (target, source) => {
    let resolve;
    source.onmessage = ({ data }) => resolve(data);
    return (message) => new Promise((done) => ((resolve = done), target.postMessage(message)));
  };
  const options = { type: "module" };
  const shared = new SharedWorker("/support/echo_worker.js", options).port;
  const dedicated = new Worker("/support/echo_worker.js", options);
  const { port1, port2 } = new MessageChannel();
  port2.onmessage = ({ data }) => port2.postMessage(data);
  const message = { id: 1, method: "tensor.get", params: { name: "x" } };
  const [toShared, toDedicated, toPage] = [echo(shared, shared), echo(dedicated, dedicated), echo(port1, port1)];
  const [small, large] = [new Float32Array(16), new Float32Array(2 ** 18)];
  const kept = await store.put("x", small);
  const big = await store.put("big", large);
  await toShared(message);
  await toDedicated(message);
  const toChannel = echo(new BroadcastChannel("to worker"), new BroadcastChannel("to page"));
  const calls = {
    "echo, shared worker": () => toShared(message),
    "echo, dedicated worker": () => toDedicated(message),
    "echo, same page": () => toPage(message),
    "echo, BroadcastChannel": () => toChannel(message),
    "has": () => store.has("x"),
    "get + release": async () => (await store.get("x")).dispose(),
    "put 64 bytes + release": async () => (await store.put("y", small)).dispose(),
    "read 64 bytes": () => kept.read("bench"),
    "put 1 MiB + release": async () => (await store.put("y", large)).dispose(),
    "put 1 MiB, given, + release": async () => (await store.put("y", new Float32Array(2 ** 18), { transfer: true })).dispose(),
    "read 1 MiB": () => big.read("bench"),
    "echo of 1 MiB, copied": () => toShared(large),
  };
  const found = {};
  for (let round = 0; round < rounds; round += 1) {
    for (const [name, call] of Object.entries(calls)) {
      const count = name.includes("MiB") ? 50 : 300;
      const start = performance.now();
      for (let index = 0; index < count; index += 1) await call();
      (found[name] ??= []).push(((performance.now() - start) * 1000) / count);
    }
  }
  return Object.entries(found).map(([name, each]) => [name, each.sort((a, b) => a - b)]);
}, ROUNDS);
for (const [name, sorted] of times) console.log(`${name.padEnd(28)} median ${sorted[ROUNDS >> 1].toFixed(0).padStart(6)} µs, best ${sorted[0].toFixed(0).padStart(6)} µs`);

// How long after its end a worker learns that a tab closed or crashed. Messages of Chromium's DevTools are part of the time.
await page.evaluate(() => {
  globalThis.ends = [];
  new BroadcastChannel("ends").onmessage = ({ data }) => ends.push(data);
});
for (const [name, end] of Object.entries({ closed: (tab) => tab.close(), crashed: crash })) {
  const seen = { lock: [], port: [] };
  for (let round = 0; round < 5; round += 1) {
    const tab = await site.blank();
    await tab.evaluate(async (lock) => {
      await new Promise((held) => void navigator.locks.request(lock, () => new Promise(() => held())));
      const { port } = new SharedWorker("/support/echo_worker.js", { type: "module" });
      await new Promise((resolve) => ((port.onmessage = resolve), port.postMessage({ lock })));
    }, `bench ${name} ${round}`);
    await page.evaluate(() => (ends.length = 0));
    const start = Date.now();
    await end(tab);
    await page.waitForFunction(() => ends.length === 2, undefined, { timeout: 5000 }).catch(() => undefined);
    for (const [kind, at] of await page.evaluate(() => ends)) seen[kind].push(at - start);
  }
  const shown = Object.entries(seen).map(([kind, each]) => `${kind} ${each.join(", ") || "never"}`);
  console.log(`a tab that is ${name}, in ms: ${shown.join("; ")}`);
}
await site.close();

// The hub and its clients in one Node process: the messages pass a MessageChannel, and the locks are those of one thread.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { connectShared, CotensorError, CpuMemory, serve, Store, tensorAnswer, Transfer, VERSION } from "cotensor";
import { RealmLocks } from "../dist/locks.js";
import { Session } from "../dist/worker/session.js";

let hubs = 0;

/** A hub in this process. `connect` opens a client. Both use `locks`. */
function open(options = {}) {
  const locks = new RealmLocks();
  const hub = serve({ locks, ...options });
  const name = `test${(hubs += 1)}`;
  const connect = (more = {}) => connectShared({ mode: "page", hub: name, page: () => hub, locks, ...more });
  return { connect, hub, locks };
}

const refusal = (promise) => promise.then(() => assert.fail("no error"), (error) => error);

async function refuses(promise, kind, text = /./) {
  const error = await refusal(promise);
  assert.ok(error instanceof CotensorError, String(error));
  assert.equal(error.kind, kind, error.message);
  assert.match(error.message, text);
}

test("two clients share one tensor, with holders and counted copies", async () => {
  const { connect, hub } = open();
  const [a, b] = [await connect({ holder: "tab a" }), await connect({ holder: "tab b" })];
  const put = await a.put("x", new Float32Array([1, 2, 3, 4, 5, 6]), { shape: [2, 3], kind: "vision_embedding", holder: "vit", metadata: { model: "vit" } });
  const got = await b.get("x");
  const { name, version, dtype, shape, kind, device, producer, metadata, holder } = got;
  assert.deepEqual([name, version, dtype, shape, kind, device, producer, metadata, holder], ["x", 1, "float32", [2, 3], "vision_embedding", "cpu", "tab a/vit", { model: "vit" }, "tab b"]);
  const view = await got.view([1, 0], [1, 3]);
  const lease = await got.leaseFor("clip");
  assert.deepEqual(await put.holders(), { "tab a/vit": 1, "tab b": 2, "tab b/clip": 1 });
  assert.equal(await put.referenceCount(), 4);
  assert.deepEqual([await got.read("test"), await view.read("test")], [new Float32Array([1, 2, 3, 4, 5, 6]), new Float32Array([4, 5, 6])]);
  const { copies } = await a.getDiagnostics();
  assert.deepEqual(copies.map(({ reason, count, bytes }) => [reason, count, bytes]), [["put", 1, 24], ["private copy", 2, 36]]);
  for (const each of [put, view, lease]) each.dispose();
  assert.deepEqual([await b.names(), await b.has("x"), hub.sessionCount], [["x"], true, 2]);
  got.dispose();
  got.dispose();
  assert.deepEqual([await b.names(), await a.has("x")], [[], false]);
  await Promise.all([a.close(), b.close()]);
  assert.equal(hub.sessionCount, 0);
});

test("an array that is given is not copied", async () => {
  const { connect } = open();
  const client = await connect();
  const array = new Uint8Array(100).fill(7);
  const given = await client.put("given", array, { transfer: true });
  assert.deepEqual([array.byteLength, (await client.getStats()).copies, (await given.read("test"))[99]], [0, [], 7]);
  const part = new Uint8Array([1, 2, 3, 4]).subarray(1, 3);
  const copied = await client.put("part", part, { transfer: true });
  assert.deepEqual([part[0], await copied.read("test")], [2, new Uint8Array([2, 3])]);
  await client.close();
});

test("tensors of another device stay in the hub, and reads have reasons", async () => {
  class FakeGpu extends CpuMemory {
    device = "webgpu";
  }
  const { connect } = open({ store: () => Store.create({ memories: [new FakeGpu()] }) });
  const client = await connect();
  const tensor = await client.put("x", new Float32Array([1, 2]), { device: "webgpu" });
  assert.deepEqual([tensor.device, client.connection.devices], ["webgpu", ["cpu", "webgpu"]]);
  assert.deepEqual(await tensor.read("show the logits"), new Float32Array([1, 2]));
  assert.deepEqual((await client.getDiagnostics()).read_backs, [{ reason: "show the logits", count: 1, bytes: 8 }]);
  await refuses(tensor.read(""), "Invalid", /reason/);
  await refuses(client.put("y", new Float32Array(1), { device: "webnn" }), "Unsupported", /no memory on webnn/);
  await client.close();
});

test("errors keep their kinds", async () => {
  const { connect } = open({ store: () => Store.create({ budgets: { cpu: 100 } }) });
  const client = await connect();
  const tensor = await client.put("x", new Uint8Array(60));
  await refuses(client.get("y"), "NotFound", /"y"/);
  await refuses(client.get("x", undefined, 3), "NotFound", /version 3/);
  await refuses(client.put("y", new Uint8Array(60)), "OverBudget");
  await refuses(client.put("y", new Uint8Array(4), { shape: [5] }), "Invalid");
  await refuses(client.put("y", new Uint8Array(4), { dtype: "float31" }), "Invalid", /dtype/);
  await refuses(client.put("y", new Uint8Array(4), { metadata: { call() {} } }), "Invalid", /cannot be sent/);
  await refuses(client.remove("y"), "NotFound");
  await refuses(client.connection.call("tensor.melt", {}), "Unsupported", /tensor\.melt: the worker has no such method/);
  await refuses(client.connection.call("toString", {}), "Unsupported");
  await refuses(client.connection.call("tensor.get", { name: 7 }), "Invalid", /name: a text/);
  await refuses(client.connection.call("tensor.view", { handle: tensor.handle, offset: "0", size: [1] }), "Invalid", /offset/);
  await refuses(client.connection.call("tensor.put", { name: "y", bytes: [1] }), "Invalid", /bytes: an ArrayBuffer/);
  await refuses(client.connection.call("tensor.holders", { handle: 99 }), "Conflict", /handle 99/);
  tensor.dispose();
  await refuses(tensor.read("test"), "Conflict", /x: this lease was disposed/);
  assert.deepEqual((await client.getStats()).memory_usage_bytes, 0);
  await client.close();
});

test("a session ends with its close: leases and objects of models are disposed, newest first", async () => {
  const disposed = [];
  // How a model is added: its objects belong to the session, its tensors are leases of the session.
  class Doubler {
    constructor(name) {
      this.name = name;
    }
    process(store, array, holder) {
      return store.put(`${this.name}/output`, array.map((each) => 2 * each), { holder, cached: true });
    }
    dispose() {
      disposed.push(this.name);
    }
  }
  const handlers = {
    "doubler.create": ({ name }, { session }) => ({ handle: session.own(new Doubler(name)) }),
    "doubler.process": ({ handle, array }, context) => {
      const { session, store } = context;
      const model = session.find(handle, Doubler);
      return tensorAnswer(context, model.process(store, array, session.holderName(model.name)));
    },
    "doubler.bytes": () => {
      const bytes = new Uint8Array([1, 2]);
      return new Transfer({ bytes }, [bytes.buffer]);
    },
  };
  const { connect, hub } = open({ handlers, ort: { name: "ort" } });
  const [a, b] = [await connect({ holder: "a" }), await connect({ holder: "b" })];
  const first = await a.connection.call("doubler.create", { name: "first" });
  await a.connection.call("doubler.create", { name: "second" });
  const output = a.adopt(await a.connection.call("doubler.process", { handle: first.handle, array: new Float32Array([1, 2]) }));
  assert.deepEqual([output.holder, await output.read("test")], ["a/first", new Float32Array([2, 4])]);
  assert.deepEqual(await a.connection.call("doubler.bytes", {}), { bytes: new Uint8Array([1, 2]) });
  const other = await b.get("first/output");
  await refuses(b.connection.call("doubler.process", { handle: first.handle, array: new Float32Array(1) }), "Conflict", /no such Doubler/);
  await a.close();
  await a.close();
  assert.deepEqual([disposed, await other.holders(), hub.sessionCount], [["second", "first"], { b: 1 }, 1]);
  await refuses(a.put("y", new Uint8Array(1)), "Unreachable", /closed; connect again/);
  assert.deepEqual([output.isDisposed, (await a.closed).kind], [true, "Unreachable"]);
  await b.close();
  assert.throws(() => serve({ handlers: { "tensor.put": () => 0 } }), (error) => error.kind === "Invalid");
});

test("a client whose lock is free loses its session", async () => {
  const { connect, hub, locks } = open();
  const names = [];
  const spied = { request: (name, options, callback) => (names.push(name), locks.request(name, options, callback)) };
  const [client, other] = [await connect({ locks: spied, holder: "lost" }), await connect()];
  await client.put("x", new Uint8Array(8));
  assert.deepEqual([await other.names(), hub.sessionCount], [["x"], 2]);
  const [lock] = names.filter((name) => name.includes(".client."));
  // The browser releases the locks of a tab that ends; here, the abandoned half of the client does.
  client.connection.abandon("test");
  assert.equal(await locks.request(lock, {}, () => "free"), "free");
  assert.deepEqual([await other.names(), hub.sessionCount, (await other.getStats()).memory_usage_bytes], [[], 1, 0]);
  await other.close();
});

test("pending calls fail when the worker ends", async () => {
  const locks = new RealmLocks();
  const held = [];
  // The hub's own lock is released by hand.
  const killable = {
    request: (name, options, callback) =>
      locks.request(name, options, name.includes(".worker.") ? () => Promise.race([callback({}), new Promise((free) => held.push(free))]) : callback),
  };
  let started;
  const running = new Promise((resolve) => (started = resolve));
  const hub = serve({ locks: killable, handlers: { wait: () => (started(), new Promise(() => undefined)) } });
  const connect = () => connectShared({ mode: "page", hub: "killed", page: () => hub, locks });
  const clients = [await connect(), await connect()];
  const waiting = clients.map((client) => refusal(client.connection.call("wait", {})));
  await running;
  held[0]();
  for (const error of await Promise.all(waiting)) assert.deepEqual([error.kind, /worker ended; connect again/.test(error.message)], ["Unreachable", true]);
  for (const client of clients) await refuses(client.names(), "Unreachable");
  assert.match((await clients[0].closed).message, /worker ended/);
  assert.equal(hub.sessionCount, 0);
});

test("an object that is made for a client that ended is disposed", async () => {
  let finish, made, disposed;
  const ended = new Promise((resolve) => (disposed = resolve));
  const handlers = {
    "thing.create": async (_params, { session }) => {
      await new Promise((resolve) => ((finish = resolve), made?.()));
      assert.ok(session.signal.aborted);
      return session.own({ dispose: disposed });
    },
  };
  const { connect } = open({ handlers });
  const client = await connect();
  const creating = new Promise((resolve) => (made = resolve));
  const call = refusal(client.connection.call("thing.create", {}));
  await creating;
  await client.close();
  assert.equal((await call).kind, "Unreachable");
  finish();
  await ended;
});

test("a call that its client cancels before it runs does not run", async () => {
  const session = new Session("tab");
  const aborted = (call) => session.cancellable(call, async ({ aborted }) => aborted).catch(({ name }) => name);
  session.cancel(1);
  session.cancel("none");
  assert.deepEqual([await aborted(1), await aborted(2), await aborted(undefined)], ["AbortError", false, false]);
  // Numbers of calls that ended are forgotten, the oldest first.
  for (let call = 3; call < 3 + 1025; call += 1) session.cancel(call);
  assert.deepEqual([await aborted(3), await aborted(4), await aborted(3 + 1024)], [false, "AbortError", "AbortError"]);
});

test("outstanding calls and messages are bounded", async () => {
  const { connect } = open({ handlers: { wait: () => new Promise(() => undefined) } });
  const client = await connect();
  const calls = Array.from({ length: 1024 }, () => client.connection.call("wait", {}).catch(() => undefined));
  await refuses(client.names(), "Refused", /1024 calls wait/);
  assert.equal(client.connection.outstanding, 1024);
  client.connection.abandon("test");
  await Promise.all(calls);
  const other = await connect();
  await refuses(other.connection.call("store.has", { name: "x", more: Array.from({ length: 1_000_001 }, () => 0) }), "Refused", /values/);
  const loop = {};
  loop.loop = loop;
  await refuses(other.connection.call("store.has", loop), "Refused");
  assert.equal(await other.has("x"), false);
  await other.close();
});

test("a page of another version is refused", async () => {
  const { hub } = open();
  const { port1, port2 } = new MessageChannel();
  hub.accept(port2);
  const call = (message) => {
    port1.postMessage(message);
    return new Promise((resolve) => (port1.onmessage = ({ data }) => resolve(data)));
  };
  const early = await call({ id: 1, method: "store.names", params: { prefix: "" } });
  assert.equal(early.error.kind, "Conflict");
  const { error } = await call({ id: 2, method: "hello", params: { version: "0.0.1", holder: "old" } });
  assert.deepEqual([error.kind, error.message.includes(`cotensor 0.0.1, the worker ${VERSION}: reload all tabs`)], ["Unsupported", true]);
  for (const params of [null, { version: VERSION }, { version: VERSION, holder: "" }]) {
    assert.equal((await call({ id: 3, method: "hello", params })).error.kind, "Invalid");
  }
  port1.close();
  const { version } = JSON.parse(await readFile(new URL("../package.json", import.meta.url), "utf8"));
  assert.equal(VERSION, version);
});

test("a store that could not be made is tried again by the next client", async () => {
  let attempts = 0;
  const store = () => ((attempts += 1) === 1 ? Promise.reject(new CotensorError("Io", "no GPU now")) : Store.create());
  const { connect } = open({ store });
  await refuses(connect(), "Io", /no GPU now/);
  const client = await connect();
  assert.deepEqual([attempts, await client.names()], [2, []]);
  await client.close();
});

test("the reasons of a fallback are told", async () => {
  const client = await connectShared({ hub: "fallback" });
  assert.equal(client.connection.mode, "page");
  assert.deepEqual(client.fallbackReasons.map((each) => each.split(":")[0]), ["shared", "dedicated"]);
  await client.close();
  await refuses(connectShared({ hub: "a b" }), "Invalid", /hub/);
  await refuses(connectShared({ hub: "own", worker: "http://localhost/own.js" }), "Unreachable", /option `page` is required/);
});

test("a thousand clients leave nothing", async () => {
  const { connect, hub, locks } = open();
  const client = await connect();
  for (let index = 0; index < 1000; index += 1) {
    const each = await connect();
    await each.put(`x${index % 7}`, new Float32Array(16));
    if (index % 2) await each.close();
    else each.connection.abandon("test");
  }
  await locks.request("any", {}, () => undefined);
  assert.deepEqual([hub.sessionCount, await client.names(), (await client.getStats()).memory_usage_bytes], [1, [], 0]);
  await client.close();
});

test("a hub that ended refuses clients at once, and keeps nothing of those that left before", async () => {
  const { connect, hub } = open();
  setFlagsFromString("--expose-gc");
  const gc = runInNewContext("gc");
  const ports = [];
  const { accept } = hub;
  hub.accept = (port) => (ports.push(new WeakRef(port)), accept.call(hub, port));
  for (let index = 0; index < 20; index += 1) await (await connect()).close();
  for (let tries = 0; tries < 50 && ports.some((port) => port.deref()); tries += 1) {
    await new Promise((resolve) => setTimeout(resolve, 10));
    gc();
  }
  assert.ok(ports.filter((port) => port.deref()).length <= 1, "ports of clients that left");
  const client = await connect();
  hub.end("the device was lost");
  assert.match((await client.closed).message, /the device was lost/);
  await refuses(connect({ startTimeout: 5000 }), "Unreachable", /^the device was lost; connect again/);
});

test("the garbage collector releases forgotten handles", async () => {
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc");
  const { connect } = open();
  const client = await connect();
  await (async () => void (await client.put("x", new Float32Array(4))))();
  for (let tries = 0; tries < 1000 && (await client.has("x")); tries += 1) collect();
  assert.equal(await client.has("x"), false);
  await client.close();
});

// Tabs, crashes and workers in a headless Chromium, which CHROMIUM names.
import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { serve } from "./support/server.mjs";
import { connect, crash, openTabs, sharedWorkers } from "./support/tabs.mjs";

const { REQUIRE_WEBGPU, WORKER_CYCLES = "200" } = process.env;
const OWN = { worker: "/support/hub_worker.js" };
let site;

before(async () => (site = await openTabs()));
after(() => site?.close());
afterEach(async () => {
  for (const page of site.context.pages()) await page.close();
});

/** Puts a tensor of four numbers. */
const put = (page, name, options) =>
  page.evaluate(async ([name, options]) => void (globalThis.kept = await store.put(name, new Float32Array([1, 2, 3, 4]), options)), [name, options]);
const get = (page, name) => page.evaluate(async (name) => void (globalThis.kept = await store.get(name)), name);
const holders = (page) => page.evaluate(async () => Object.keys(await kept.holders()).sort());

/** Waits until a condition in the page holds; the test's own limit ends it. */
const until = (page, condition) => page.waitForFunction(condition, undefined, { timeout: 30_000 });

test("two tabs share one worker and one tensor", async () => {
  const [a, b] = [await site.tab({ holder: "a" }), await site.tab({ holder: "b" })];
  await put(a, "x", { holder: "vit" });
  await get(b, "x");
  const values = await b.evaluate(async () => [...(await kept.read("test"))]);
  const { workers } = await sharedWorkers(site.browser);
  assert.deepEqual([values, await holders(a), workers.length], [[1, 2, 3, 4], ["a/vit", "b"], 1]);
  assert.deepEqual(await b.evaluate(() => [store.connection.mode, store.fallbackReasons]), ["shared", []]);
  assert.match(workers[0].title, /^cotensor\.\d+\.\d+\.\d+\.default$/);
});

test("a tensor on the GPU stays in the worker", async (context) => {
  const [a, b] = [await site.tab({ webgpu: true, budgets: { webgpu: 1000 } }), await site.tab({ webgpu: true, budgets: { webgpu: 1000 } })];
  if (!(await a.evaluate(() => store.connection.devices)).includes("webgpu")) {
    assert.ok(!REQUIRE_WEBGPU, "shared workers have no WebGPU adapter");
    return context.skip("shared workers have no WebGPU adapter");
  }
  await put(a, "x", { device: "webgpu" });
  const seen = await b.evaluate(async () => {
    const tensor = await store.get("x");
    const before = (await store.getDiagnostics()).read_backs;
    const values = [...(await tensor.read("show"))];
    const refused = await store.put("y", new Uint8Array(2000), { device: "webgpu" }).catch(({ kind }) => kind);
    return { before, device: tensor.device, readBacks: (await store.getDiagnostics()).read_backs, refused, values };
  });
  const readBacks = [{ reason: "show", count: 1, bytes: 16 }];
  assert.deepEqual(seen, { before: [], device: "webgpu", readBacks, refused: "OverBudget", values: [1, 2, 3, 4] });
});

test("the hub's GPU has the limits of the adapter", async (context) => {
  const page = await site.blank();
  const hasGpu = await page.evaluate(async () => (await navigator.gpu?.requestAdapter()) != null);
  if (!hasGpu) {
    assert.ok(!REQUIRE_WEBGPU, "pages have no WebGPU adapter");
    return context.skip("pages have no WebGPU adapter");
  }
  await page.evaluate(() => {
    const { requestDevice } = GPUAdapter.prototype;
    GPUAdapter.prototype.requestDevice = async function (descriptor) {
      const device = await requestDevice.call(this, descriptor);
      globalThis.made = { adapter: this, device };
      return device;
    };
  });
  await page.evaluate(connect, { mode: "page", webgpu: true });
  const limits = await page.evaluate(() => {
    const names = [];
    for (const name in made.adapter.limits) if (/^max(Buffer|Storage|Compute|Bind)/.test(name) && !/In(Vertex|Fragment)/.test(name)) names.push(name);
    return names.map((name) => [name, made.device.limits[name], made.adapter.limits[name]]);
  });
  assert.ok(limits.length >= 9);
  for (const [name, device, adapter] of limits) assert.equal(device, adapter, name);
});

test("a hub whose GPU is lost tells the tabs, and the next connection has a new one", async (context) => {
  for (const mode of ["shared", "dedicated"]) {
    const page = await site.blank();
    await page.evaluate(connect, { ...OWN, mode });
    if (!(await page.evaluate(() => store.connection.devices)).includes("webgpu")) return context.skip("workers have no WebGPU adapter");
    await put(page, "x", { device: "webgpu" });
    const reason = await page.evaluate(async () => {
      store.connection.call("test.lose", {}).catch(() => undefined);
      return (await store.connection.closed).message;
    });
    assert.match(reason, /the device webgpu of the worker was lost .*connect again/);
    await page.evaluate(connect, { ...OWN, mode });
    await put(page, "y", { device: "webgpu" });
    assert.deepEqual(await page.evaluate(async () => [await store.names(), [...(await kept.read("test"))]]), [["y"], [1, 2, 3, 4]]);
    await page.close();
  }
});

test("a hub without a GPU has the host's memory, also where the browser refuses to look for one", async () => {
  const seen = [];
  for (const kind of ["none", "refused"]) {
    const page = await site.blank();
    await page.evaluate((kind) => {
      for (const name of ["SharedWorker", "Worker"]) delete globalThis[name];
      const requestAdapter = async () => {
        if (kind === "refused") throw new DOMException("WebGPU is not yet available", "NotSupportedError");
        return null;
      };
      Object.defineProperty(navigator, "gpu", { value: { requestAdapter } });
    }, kind);
    await page.evaluate(connect, { webgpu: true, budgets: { webgpu: 1000 } });
    await put(page, "x");
    seen.push(await page.evaluate(async () => [store.connection.devices, await store.names()]));
  }
  assert.deepEqual(seen, [[["cpu"], ["x"]], [["cpu"], ["x"]]]);
});

test("a tab that is closed, left or crashed loses its leases, and its tensors are freed", async () => {
  const watcher = await site.tab({ holder: "watcher" });
  const ends = {
    closed: (page) => page.close(),
    left: (page) => page.goto("about:blank"),
    reloaded: (page) => page.reload(),
    crashed: crash,
  };
  for (const [name, end] of Object.entries(ends)) {
    const page = await site.tab({ holder: name });
    await put(page, "x", { cached: false });
    await get(watcher, "x");
    assert.deepEqual(await holders(watcher), [name, "watcher"].sort());
    await end(page);
    await until(watcher, async () => Object.keys(await kept.holders()).join() === "watcher");
    const left = await watcher.evaluate(async () => {
      kept.dispose();
      return [await store.names(), (await store.getStats()).memory_usage_bytes];
    });
    assert.deepEqual(left, [[], 0], name);
  }
});

test("a page that the browser keeps for its history loses its session", async () => {
  const [watcher, page] = [await site.tab(), await site.tab({ holder: "left" })];
  await put(page, "x");
  await page.goto(`${site.url}other`);
  await until(watcher, async () => !(await store.has("x")));
  await page.goBack({ waitUntil: "commit" });
  const restored = await page.evaluate(async () => {
    const client = globalThis.store;
    return client && [await client.names().catch(({ kind }) => kind), (await client.closed).message];
  });
  // A browser without memory for it loads the page anew.
  if (restored) assert.deepEqual(restored, ["Unreachable", "the page was left; connect again"]);
});

test("when the worker is killed or ends, pending calls of all tabs fail, and tabs connect again", async () => {
  const kills = {
    killed: async () => {
      const { workers, kill } = await sharedWorkers(site.browser);
      for (const worker of workers) if (worker.url.endsWith(OWN.worker)) await kill(worker);
    },
    ended: ([page]) => page.evaluate(() => void store.connection.call("test.end", {}).catch(() => undefined)),
  };
  for (const [name, kill] of Object.entries(kills)) {
    const pages = [await site.tab(OWN), await site.tab(OWN)];
    for (const page of pages) {
      await page.evaluate(() => void (globalThis.failed = store.connection.call("test.wait", {}).catch(({ kind, message }) => [kind, message])));
    }
    await kill(pages);
    for (const page of pages) {
      assert.deepEqual(await page.evaluate(() => failed), ["Unreachable", "the worker ended; connect again"], name);
      assert.equal(await page.evaluate(() => store.names().catch(({ kind }) => kind)), "Unreachable");
      await page.evaluate(connect, OWN);
    }
    await put(pages[0], "again");
    assert.deepEqual(await pages[1].evaluate(() => store.names()), ["again"]);
    for (const page of pages) await page.close();
  }
});

test("a crashed tab that shares a process with the worker is noticed by the others", async () => {
  const [first, second] = [await site.tab(), await site.tab()];
  await put(first, "x");
  await crash(first);
  // The worker ran in the process of the first tab, or it did not: both end the lease.
  const seen = await second.evaluate(async () => {
    for (;;) {
      const found = await store.has("x").catch(({ kind }) => kind);
      if (found !== true) return found;
    }
  });
  assert.ok(seen === false || seen === "Unreachable", String(seen));
  await second.evaluate(connect, {});
  assert.deepEqual(await second.evaluate(() => store.names()), []);
});

test("ten tabs share one tensor", async () => {
  const pages = await Promise.all(Array.from({ length: 10 }, (_, index) => site.tab({ holder: `tab ${index}` })));
  await put(pages[0], "x");
  await Promise.all(pages.slice(1).map((page) => get(page, "x")));
  assert.equal((await holders(pages[9])).length, 10);
  const { total_tensors, memory_usage_bytes } = await pages[5].evaluate(() => store.getStats());
  assert.deepEqual([total_tensors, memory_usage_bytes], [1, 16]);
  assert.equal((await sharedWorkers(site.browser)).workers.length, 1);
});

test("cycles of connecting and closing leave no session, lock or tensor", async () => {
  const page = await site.tab(OWN);
  const seen = await page.evaluate(async ([cycles, options]) => {
    const { connectShared } = await import("/index.js");
    const locks = async () => {
      const { held, pending } = await navigator.locks.query();
      return [held.length, pending.length];
    };
    const before = await locks();
    let most = 0;
    for (let index = 0; index < cycles; index += 1) {
      const each = await connectShared(options);
      await each.connection.call("test.join", {});
      await each.put(`x${index}`, new Float32Array(1000));
      most = Math.max(most, (await store.connection.call("test.counts", {})).sessions);
      await each.close();
    }
    const { sessions } = await store.connection.call("test.counts", {});
    return { before, after: await locks(), most, sessions, stats: await store.getStats() };
  }, [Number(WORKER_CYCLES), OWN]);
  assert.deepEqual([seen.after, seen.most, seen.sessions, seen.stats.total_tensors, seen.stats.metadata_bytes], [seen.before, 1, 0, 0, 0]);
});

test("another site, and another hub of the site, have tensors of their own", async () => {
  const other = await serve();
  try {
    const [a, b, c] = [await site.tab(), await site.tab({}, other.url), await site.tab({ hub: "second" })];
    await put(a, "x");
    for (const page of [b, c]) assert.deepEqual(await page.evaluate(() => store.names()), []);
  } finally {
    other.close();
  }
});

test("a program's own worker has its onnxruntime-web and its methods", async () => {
  const page = await site.tab(OWN);
  assert.equal(await page.evaluate(() => store.connection.call("test.ort", {})), "test");
});

test("the package's worker imports the onnxruntime-web of its URL, and says what is wrong with it", async () => {
  const page = await site.tab({ ort: "/support/ort_module.js", hub: "ort" });
  assert.equal(await page.evaluate(() => store.connection.mode), "shared");
  const missing = await page.evaluate(async () => {
    const { connectShared } = await import("/index.js");
    return connectShared({ ort: "/support/none.js", hub: "none" }).catch(({ kind, message }) => [kind, message]);
  });
  assert.equal(missing[0], "Io");
  assert.match(missing[1], /ort http.*\/support\/none\.js: the worker could not import it/);
});

test("without shared workers the hub is in a worker of the page, and without workers in the page; the reasons are reported", async () => {
  const seen = [];
  for (const missing of [["SharedWorker"], ["SharedWorker", "Worker"]]) {
    const page = await site.blank();
    await page.evaluate((names) => names.forEach((name) => delete globalThis[name]), missing);
    await page.evaluate(connect, { holder: "tab" });
    await put(page, "x");
    seen.push(await page.evaluate(async () => {
      const { connectShared } = await import("/index.js");
      const other = await connectShared({ holder: "other" });
      const names = await other.names();
      await store.close();
      const rest = await other.names();
      await other.close();
      return [other.connection.mode, other.fallbackReasons, names, rest];
    }));
  }
  assert.deepEqual(seen, [
    ["dedicated", ["shared: the browser has no shared workers"], ["x"], []],
    ["page", ["shared: the browser has no shared workers", "dedicated: the browser has no workers"], ["x"], []],
  ]);
});

test("a dedicated worker that ends is noticed", async () => {
  const page = await site.tab({ ...OWN, mode: "dedicated" });
  const failed = await page.evaluate(async () => {
    const waiting = store.connection.call("test.wait", {}).catch(({ kind }) => kind);
    store.connection.call("test.end", {}).catch(() => undefined);
    return waiting;
  });
  await page.evaluate(connect, { ...OWN, mode: "dedicated" });
  assert.deepEqual([failed, await page.evaluate(() => store.names())], ["Unreachable", []]);
});

test("a worker's file that is missing is an error with its reasons", async () => {
  const page = await site.blank();
  const [kind, message] = await page.evaluate(async () => {
    const { connectShared } = await import("/index.js");
    return connectShared({ worker: "/support/none.js" }).catch(({ kind, message }) => [kind, message]);
  });
  assert.equal(kind, "Unreachable");
  assert.match(message, /shared: .*dedicated: .*page: the option `page`/);
});

test("an insecure page has a hub of its own", async () => {
  const page = await site.tab({}, site.url.replace("127.0.0.1", "insecure.test"));
  const [mode, [reason]] = await page.evaluate(() => [store.connection.mode, store.fallbackReasons]);
  assert.equal(mode, "dedicated");
  assert.match(reason, /no Web Locks .* secure contexts/);
});

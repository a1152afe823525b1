// The private file system in a headless Chromium, which CHROMIUM names.
import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { bytesOf, serveFiles } from "./support/files.mjs";
import { serve } from "./support/server.mjs";
import { crash, launch } from "./support/tabs.mjs";

const COMMIT = "0123456789abcdef0123456789abcdef01234567";
const NAME = `org/model/resolve/${COMMIT}/model.onnx`;
const body = bytesOf(3_000_000);
const files = {};
let chromium, remote, site;

before(async () => {
  [site, remote] = [await serve(), await serveFiles(files)];
  chromium = await launch();
});
after(async () => {
  await chromium?.close();
  site?.close();
  remote?.close();
});
beforeEach(() => {
  for (const name of Object.keys(files)) delete files[name];
  [remote.log.length, remote.sent.bytes] = [0, 0];
});
afterEach(async () => {
  for (const context of chromium.browser.contexts()) {
    for (const page of context.pages()) await page.close();
  }
});

/** A page with `cache`, `get` and the other names of support/cache_page.js. */
async function open(context = chromium.context) {
  const page = await context.newPage();
  await page.goto(site.url);
  await page.evaluate(openCache, remote.url);
  return page;
}

/** A new profile without files. */
const fresh = async () => open(await chromium.browser.newContext());

async function openCache(remote) {
  await (await import("/support/cache_page.js")).openCache(remote);
}

test("a second visit fetches nothing", async () => {
  files[NAME] = { body, etag: '"a"' };
  const profile = await mkdtemp(join(tmpdir(), "cotensor-web-"));
  const visits = [];
  try {
    for (const visit of [1, 2]) {
      const { context, close } = await launch(profile);
      const page = await open(context);
      visits.push(await page.evaluate(async (name) => {
        const { blob, fetchedBytes, size } = await get(name);
        const bytes = new Uint8Array(await blob.arrayBuffer());
        return [cache.home, fetchedBytes, size, bytes[1], bytes.at(-1)];
      }, NAME));
      await close();
      assert.equal(remote.sent.bytes, body.length, `visit ${visit}`);
    }
  } finally {
    await rm(profile, { recursive: true, force: true });
  }
  const stored = [body.length, body[1], body.at(-1)];
  assert.deepEqual(visits, [["opfs", body.length, ...stored], ["opfs", 0, ...stored]]);
  assert.deepEqual(remote.log, [`GET /${NAME}`]);
});

test("tabs and a shared worker that ask at once fetch a file once", async () => {
  files[NAME] = { body, etag: '"a"' };
  const pages = [await open(), await open(), await open()];
  const fetched = await Promise.all(pages.map((page) => page.evaluate(async (name) => (await get(name)).fetchedBytes, NAME)));
  assert.deepEqual([fetched.sort(), remote.sent.bytes], [[0, 0, body.length].sort(), body.length]);
  const inWorker = await pages[0].evaluate((parameters) => {
    const { port } = new SharedWorker(`/support/cache_worker.js?${parameters}`, { type: "module" });
    return new Promise((resolve) => (port.onmessage = ({ data }) => resolve(data)));
  }, String(new URLSearchParams({ remote: remote.url, name: NAME })));
  assert.deepEqual(inWorker, ["opfs", 0]);
});

test("a download that breaks, has a wrong length, is missing or a page leaves no file", async () => {
  Object.assign(files, {
    broken: { body, breakAt: 1_000_000 },
    page: { body: bytesOf(10), type: "text/html" },
    whole: { body, etag: '"a"' },
  });
  const page = await fresh();
  const cases = [["broken", {}, "Io"], ["whole", { size: 5 }, "Corrupt"], ["missing", {}, "NotFound"], ["page", {}, "NotFound"]];
  for (const [name, options, kind] of cases) {
    const error = await page.evaluate(([name, options]) => failure(get(name, options)), [name, options]);
    assert.equal(error?.kind, kind, JSON.stringify(error));
    assert.match(error.message, new RegExp(`^${remote.url}${name}: `));
  }
  const aborted = await page.evaluate(() => {
    const abort = new AbortController();
    return failure(get("whole", { signal: abort.signal, progress: () => abort.abort() }));
  });
  assert.equal(aborted.name, "AbortError");
  assert.deepEqual(await page.evaluate(async () => [await files("blobs"), await files("manifests")]), [[], []]);
  assert.equal(await page.evaluate(async () => (await get("whole")).size), body.length);
});

test("a connection that breaks is continued", async () => {
  files.x = { body, etag: '"a"', breakAt: 1_000_000 };
  const page = await fresh();
  const seen = await page.evaluate(async () => {
    const { blob, hash } = await get("x");
    return [blob.size, await cache.verify({ hash, size: blob.size })];
  });
  assert.deepEqual(seen, [body.length, true]);
  assert.match(remote.log.join(), /^GET \/x,GET \/x bytes=\d+-$/);
});

test("a tab that ends in the middle of a download leaves the file to the next tab", async () => {
  const page = await fresh();
  const other = await open(page.context());
  files.x = { body, etag: '"a"', stallAt: 1_000_000 };
  await page.evaluate(() => new Promise((resolve) => void get("x", { progress: resolve })));
  await crash(page);
  files.x = { body, etag: '"a"' };
  const seen = await other.evaluate(async () => {
    const { fetchedBytes } = await get("x");
    await cache.prune(Infinity);
    return [fetchedBytes, (await files("blobs")).length, (await cache.usage()).blobs];
  });
  assert.deepEqual(seen, [body.length, 1, 1]);
});

test("truncated and changed files are found", async () => {
  files.x = { body, etag: '"a"' };
  const page = await fresh();
  const seen = await page.evaluate(async () => {
    const once = { revalidate: false };
    const { hash, size } = await get("x", once);
    const file = await (await folder("blobs")).getFileHandle(hash);
    const change = async (edit) => {
      const writable = await file.createWritable({ keepExistingData: true });
      await edit(writable);
      await writable.close();
    };
    await change((writable) => writable.truncate(100));
    const truncated = (await get("x", once)).fetchedBytes;
    await change((writable) => writable.write({ type: "write", position: 0, data: new Uint8Array([255]) }));
    const changed = [await cache.verify({ hash, size }), (await get("x", once)).fetchedBytes, await cache.verify({ hash, size })];
    return { truncated, changed };
  });
  assert.deepEqual(seen, { truncated: body.length, changed: [false, body.length, true] });
});

test("a full disk is an error with the sizes, nothing half-written stays, and prune makes room", async () => {
  files.first = { body, etag: '"a"' };
  files.second = { body: bytesOf(3_000_000, 2), etag: '"b"' };
  const page = await fresh();
  await page.evaluate(() => get("first"));
  const session = await page.context().newCDPSession(page);
  const { usage } = await session.send("Storage.getUsageAndQuota", { origin: site.url });
  await session.send("Storage.overrideQuotaForOrigin", { origin: site.url, quotaSize: usage + 1_000_000 });
  const error = await page.evaluate(() => failure(get("second")));
  assert.equal(error?.kind, "OverBudget", JSON.stringify(error));
  assert.match(error.message, /the site uses \d+ of \d+ bytes\. prune\(maxBytes\)/);
  const before = await page.evaluate(async () => [(await files("blobs")).length, (await files("manifests")).length]);
  const after = await page.evaluate(async () => {
    const removed = await cache.prune(0);
    return [removed.length, (await get("second")).size];
  });
  assert.deepEqual([before, after], [[1, 1], [1, 3_000_000]]);
});

test("a window without persistence keeps files for its life, and a refused file system is memory with the reason", async () => {
  files.x = { body, etag: '"a"' };
  const page = await fresh();
  assert.deepEqual(await page.evaluate(async () => [(await get("x")).size, (await get("x")).fetchedBytes]), [body.length, 0]);
  const refused = await page.evaluate(async () => {
    const { openFolders } = await import("/index.js");
    navigator.storage.getDirectory = () => Promise.reject(new DOMException("no files in private windows", "SecurityError"));
    const { home, reason } = await openFolders();
    return [home, reason];
  });
  assert.equal(refused[0], "memory");
  assert.match(refused[1], /refused .*no files in private windows/);
  const insecure = await page.context().newPage();
  await insecure.goto(site.url.replace("127.0.0.1", "insecure.test"));
  await insecure.evaluate(openCache, remote.url);
  const seen = await insecure.evaluate(async () => [cache.home, cache.reason, (await get("x")).fetchedBytes, (await get("x")).fetchedBytes]);
  assert.deepEqual([seen[0], ...seen.slice(2)], ["memory", body.length, 0]);
  assert.match(seen[1], /no Origin Private File System .* secure contexts/);
});

test("another site has files of its own", async () => {
  files.x = { body, etag: '"a"' };
  const page = await fresh();
  await page.evaluate(() => get("x"));
  const other = await serve();
  try {
    const elsewhere = await page.context().newPage();
    await elsewhere.goto(other.url);
    await elsewhere.evaluate(openCache, remote.url);
    assert.deepEqual(await elsewhere.evaluate(async () => [await cache.usage(), (await get("x")).fetchedBytes]), [{ bytes: 0, blobs: 0, manifests: 0 }, body.length]);
  } finally {
    other.close();
  }
});

test("a compressed file of another site arrives whole, with its whole length as the progress", async () => {
  files[NAME] = { body, etag: '"a"', gzipped: true };
  const page = await fresh();
  const [size, totals] = await page.evaluate(async (name) => {
    const totals = new Set();
    const { size } = await get(name, { progress: (_received, total) => totals.add(total) });
    return [size, [...totals]];
  }, NAME);
  assert.deepEqual([size, totals], [body.length, [body.length]]);
});

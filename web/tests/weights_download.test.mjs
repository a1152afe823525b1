import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";
import { download, forgetDownload, MemoryFolders, WeightCache } from "cotensor";
import { ModelFolder } from "../dist/models/folder.js";
import { bytesOf, newHasher, serveFiles, sha256 } from "./support/files.mjs";

const COMMIT = "0123456789abcdef0123456789abcdef01234567";
const body = bytesOf(300_000);
const files = {};
let cache, folders, server;

before(async () => (server = await serveFiles(files)));
after(() => server.close());
beforeEach(async () => {
  for (const name of Object.keys(files)) delete files[name];
  [server.log.length, server.sent.bytes] = [0, 0];
  folders = new MemoryFolders("test");
  cache = await WeightCache.open({ newHasher, folders });
});

const get = (name, options) => download(cache, server.url + name, options);
const refusal = (promise) => promise.then(() => assert.fail("no error"), (error) => error);

async function isEmpty() {
  const { blobs, manifests } = await cache.usage();
  return blobs === 0 && manifests === 0;
}

test("a file of a fixed revision is fetched once, and never asked for again", async () => {
  const name = `org/model/resolve/${COMMIT}/model.onnx`;
  files[name] = { body, etag: '"a"' };
  const seen = [];
  const first = await get(name, { progress: (received, total) => seen.push([received, total]) });
  assert.deepEqual([first.fetchedBytes, first.size, first.hash, first.isStale], [body.length, body.length, sha256(body), false]);
  assert.deepEqual(seen.at(-1), [body.length, body.length]);
  const second = await get(name);
  assert.deepEqual(new Uint8Array(await second.blob.arrayBuffer()), body);
  assert.deepEqual([second.fetchedBytes, server.log], [0, [`GET /${name}`]]);
});

test("another file is compared with the server's version without its bytes", async () => {
  files.x = { body, etag: '"a"' };
  await get("x");
  assert.equal((await get("x")).fetchedBytes, 0);
  files.x = { body: bytesOf(10), etag: '"b"' };
  const newer = await get("x");
  assert.deepEqual([newer.fetchedBytes, newer.size], [10, 10]);
  assert.deepEqual(server.log, ["GET /x", "HEAD /x", "HEAD /x", "GET /x"]);
  assert.deepEqual([(await get("x", { revalidate: false })).fetchedBytes, server.log.length], [0, 4]);
});

test("a stored file is used when the server fails, and not when it removed the file", async () => {
  files.x = { body, modified: "Mon, 01 Jan 2024 00:00:00 GMT" };
  await get("x");
  files.x = { status: 503 };
  const stale = await get("x");
  assert.deepEqual([stale.isStale, stale.fetchedBytes, stale.size], [true, 0, body.length]);
  delete files.x;
  assert.equal((await refusal(get("x"))).kind, "NotFound");
});

test("a file without a version is fetched again", async () => {
  files.x = { body };
  await get("x");
  assert.equal((await get("x")).fetchedBytes, body.length);
});

test("a server that refuses HEAD is asked by GET", async () => {
  for (const status of [403, 405]) {
    files.x = { body, etag: '"a"', headStatus: status };
    await get("x");
    assert.equal((await get("x")).fetchedBytes, 0);
    files.x = { body: bytesOf(10), etag: '"b"', headStatus: status };
    assert.equal((await get("x")).size, 10);
  }
});

test("a server that stops sending is continued, and then given up", async () => {
  files.x = { body, etag: '"a"', stallAt: 100_000 };
  const progress = () => (files.x = { body, etag: '"a"' });
  assert.equal((await get("x", { stallMilliseconds: 300, progress })).hash, sha256(body));
  files.y = { body, etag: '"a"', stallAt: 100_000, ranges: false };
  const waiting = [get("y", { stallMilliseconds: 300 }), get("y", { stallMilliseconds: 300 })].map(refusal);
  const [error, next] = await Promise.all(waiting);
  assert.deepEqual([error.kind, next.kind], ["Io", "Io"]);
  assert.match(error.message, /broke after 100000 bytes \(no bytes for 0.3 s\)/);
  files.z = { silent: true };
  assert.match((await refusal(get("z", { stallMilliseconds: 300 }))).message, /no answer within 0.3 s/);
  files.y = { body, etag: '"a"' };
  assert.equal((await get("y")).fetchedBytes, body.length);
});

test("calls at the same time fetch a file once", async () => {
  files.x = { body, etag: '"a"' };
  const all = await Promise.all([1, 2, 3, 4].map(() => get("x")));
  assert.deepEqual([all.map(({ fetchedBytes }) => fetchedBytes), server.sent.bytes], [[body.length, 0, 0, 0], body.length]);
});

test("a broken connection is continued where it broke", async () => {
  files.x = { body, etag: '"a"', breakAt: 100_000 };
  const { hash, fetchedBytes } = await get("x");
  assert.deepEqual([hash, fetchedBytes], [sha256(body), body.length]);
  assert.match(server.log.join(), /^GET \/x,GET \/x bytes=\d+-$/);
});

test("a broken connection that cannot be continued is an error, and nothing is stored", async () => {
  for (const more of [{ ranges: false, etag: '"a"' }, { etag: 'W/"a"' }, {}]) {
    files.x = { body, breakAt: 100_000, ...more };
    const { kind, message } = await refusal(get("x"));
    assert.equal(kind, "Io");
    assert.match(message, /\/x: the connection broke after \d+ bytes/);
    assert.ok(await isEmpty());
  }
});

test("a file that changes while it is continued is not mixed", async () => {
  files.x = { body, etag: '"a"', breakAt: 100_000 };
  const progress = () => (files.x = { body: bytesOf(300_000, 2), etag: '"b"' });
  assert.equal((await refusal(get("x", { progress }))).kind, "Io");
  assert.ok(await isEmpty());
});

test("lengths and hashes are checked, and nothing is stored", async () => {
  files.x = { body, etag: '"a"' };
  files.endless = { body, chunked: true };
  const cases = [
    ["x", { size: 5 }, "Corrupt", /5 bytes are expected, the server announces 300000/],
    ["endless", { size: 5 }, "Corrupt", /more than the 5 bytes/],
    ["endless", { size: 300_001 }, "Corrupt", /sent 300000 of 300001 bytes/],
    ["x", { maxBytes: 1000 }, "Refused", /300000 bytes; maxBytes allows 1000/],
    ["endless", { maxBytes: 1000 }, "Refused", /more than 1000 bytes/],
    ["x", { hash: "0".repeat(64) }, "Corrupt", /has the BLAKE3 hash/],
  ];
  for (const [name, options, kind, text] of cases) {
    const error = await refusal(get(name, options));
    assert.equal(error.kind, kind, error.message);
    assert.match(error.message, text);
    assert.ok(error.message.startsWith(server.url + name));
    assert.ok(await isEmpty());
  }
  assert.equal((await get("x", { hash: sha256(body), size: body.length })).size, body.length);
});

test("answers that are not the file are errors that say so", async () => {
  Object.assign(files, {
    page: { body: bytesOf(10), type: "text/html; charset=utf-8" },
    gated: { status: 403 },
    busy: { status: 503 },
  });
  const cases = [
    ["missing", "NotFound", /status 404/],
    ["page", "NotFound", /HTML page instead of the file; development servers/],
    ["gated", "Refused", /status 403.*permission/],
    ["busy", "Io", /status 503/],
  ];
  for (const [name, kind, text] of cases) {
    const error = await refusal(get(name));
    assert.deepEqual([error.kind, text.test(error.message)], [kind, true], error.message);
  }
  const closed = await serveFiles({});
  closed.close();
  const error = await refusal(download(cache, `${closed.url}x`));
  assert.deepEqual([error.kind, /no answer .*CORS/.test(error.message)], ["Io", true], error.message);
  for (const address of ["ftp://x/y", "x"]) assert.equal((await refusal(download(cache, address))).kind, "Invalid");
  assert.ok(await isEmpty());
});

test("an aborted download stores nothing, and the next one works", async () => {
  files.x = { body, etag: '"a"', breakAt: 1000 };
  const abort = new AbortController();
  const error = await refusal(get("x", { signal: abort.signal, progress: () => abort.abort() }));
  assert.equal(error.name, "AbortError");
  assert.ok(await isEmpty());
  files.x = { body, etag: '"a"' };
  assert.equal((await refusal(get("x", { signal: AbortSignal.abort() }))).name, "AbortError");
  assert.equal((await get("x")).size, body.length);
});

test("a truncated stored file is fetched again", async () => {
  files.x = { body, etag: '"a"' };
  const { hash } = await get("x", { revalidate: false });
  await (await folders.open("blobs")).write(hash, body.subarray(0, 10));
  assert.equal((await get("x", { revalidate: false })).fetchedBytes, body.length);
});

test("a model is imported from a download, which is forgotten", async () => {
  files.x = { body, etag: '"a"' };
  const url = `${server.url}x`;
  const { blobs } = await cache.once(url, async (put) => {
    const { blob } = await download(cache, url);
    await put(blob.slice(0, 1000));
    await forgetDownload(cache, url);
    return {};
  });
  assert.deepEqual([(await cache.usage()).blobs, blobs[0].size], [1, 1000]);
  assert.equal((await get("x")).fetchedBytes, body.length);
});

test("without a version of the server, the content of a model's file is its version", async () => {
  const version = () => new ModelFolder("model", new URL(server.url), cache).version("x");
  files.x = { body };
  const first = await version();
  assert.equal(await version(), first);
  files.x = { body: bytesOf(body.length, 2) };
  assert.notEqual(await version(), first, "the length is the same");
  files.x = { body, etag: '"a"' };
  await version();
  assert.deepEqual(server.log.slice(-2), ["GET /x", "HEAD /x"]);
});

test("every wait for a server has a limit: parts of files, and questions for a version", async () => {
  const folder = new ModelFolder("model", new URL(server.url), cache, 300);
  files.x = { body, etag: '"a"' };
  assert.deepEqual(await folder.range("x", 8, 4), body.subarray(8, 12));
  files.x = { body, etag: '"a"', stallAt: 2 };
  assert.match((await refusal(folder.range("x", 8, 4))).message, /broke after 2 bytes \(no bytes for 0.3 s\)/);
  files.y = { body, etag: '"a"' };
  await get("y");
  files.y = { silent: true };
  assert.equal((await get("y", { stallMilliseconds: 300 })).isStale, true);
});

test("progress has the length of a file that the server compresses, or sends without a length", async () => {
  for (const kind of ["gzipped", "chunked"]) {
    files[kind] = { body, etag: '"a"', [kind]: true };
    const seen = [];
    const { size, hash } = await get(kind, { progress: (received, total) => seen.push([received, total]) });
    assert.deepEqual([size, hash], [body.length, sha256(body)]);
    assert.ok(seen.every(([, total]) => total === body.length), `${kind}: ${seen[0]}`);
    assert.deepEqual(seen.at(-1), [body.length, body.length]);
    assert.deepEqual(server.log.splice(0), [`GET /${kind}`, `GET /${kind} bytes=0-0`]);
  }
  files.whole = { body, etag: '"a"', gzipped: true, ranges: false };
  const seen = [];
  await get("whole", { progress: (received, total) => seen.push(total) });
  assert.ok(seen.length > 0 && seen.every((total) => total === undefined), "a server without ranges does not say it");
  server.log.length = 0;
  await get("plain", { progress: () => undefined }).catch(() => undefined);
  files.plain = { body, etag: '"a"' };
  await get("plain", { progress: () => undefined });
  assert.deepEqual(server.log.filter((line) => line.includes("bytes=")), [], "a length that is known is not asked for");
});

test("a file whose version is its hash is downloaded once while it is kept, and again afterwards", async () => {
  files.x = { body };
  const folder = new ModelFolder("model", new URL(server.url), cache);
  const read = () =>
    folder.keeping(async (keep) => {
      keep("x");
      await folder.version("x");
      return Promise.all([folder.bytes("x"), folder.bytes("x")]);
    });
  const downloads = () => server.log.filter((line) => line.startsWith("GET /x")).length;
  const [[first, same]] = await Promise.all([read(), read()]);
  assert.deepEqual([first.length, same === first, downloads()], [body.length, true, 1]);
  await folder.bytes("x");
  assert.equal(downloads(), 2);
});

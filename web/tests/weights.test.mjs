import assert from "node:assert/strict";
import { test } from "node:test";
import { MemoryFolders, WeightCache } from "cotensor";
import { bytesOf, newHasher, sha256 } from "./support/files.mjs";

/** A cache in memory, with its folders and a clock in minutes. */
async function open() {
  const folders = new MemoryFolders("test");
  const clock = { minutes: 0 };
  const cache = await WeightCache.open({ newHasher, folders, now: () => clock.minutes * 60_000 });
  return { cache, clock, blobs: await folders.open("blobs"), manifests: await folders.open("manifests") };
}

/** Imports a model of these blobs. */
const add = (cache, key, blobs, document = {}) =>
  cache.once(key, async (put) => {
    for (const each of blobs) await put(each);
    return document;
  });

const refusal = (promise) => promise.then(() => assert.fail("no error"), (error) => error);

test("a blob is stored once under its hash, from bytes, blobs and streams", async () => {
  const { cache } = await open();
  const content = bytesOf(10_000_000);
  async function* stream() {
    yield content.subarray(0, 5);
    yield content.subarray(5);
  }
  const { blobs } = await add(cache, "model", [content, new Blob([content]), stream()]);
  assert.deepEqual(blobs, [{ hash: sha256(content), size: content.length }]);
  assert.deepEqual(await cache.bytes(blobs[0]), content);
  assert.equal((await cache.usage()).blobs, 1);
  assert.equal(cache.reason, "test");
});

test("a second model adds only new blobs, and a stored model is not built again", async () => {
  const { cache } = await open();
  const [shared, first, second] = [1, 2, 3].map((seed) => bytesOf(1000, seed));
  await add(cache, "first", [shared, first], { space: "a" });
  const before = await cache.usage();
  const manifest = await add(cache, "second", [shared, second], { space: "b" });
  const after = await cache.usage();
  assert.deepEqual([before.blobs, after.blobs, after.manifests], [2, 3, 2]);
  const again = await cache.once("second", () => assert.fail("it was built again"));
  assert.deepEqual([again.document, again.blobs], [{ space: "b" }, manifest.blobs]);
});

test("callers of one key wait for the first", async () => {
  const { cache } = await open();
  let builds = 0;
  const build = async (put) => {
    builds += 1;
    await put(bytesOf(10));
    return builds;
  };
  const all = await Promise.all([1, 2, 3].map(() => cache.once("model", build)));
  assert.deepEqual([builds, all.map(({ document }) => document)], [1, [1, 1, 1]]);
});

test("a failed import leaves nothing, except blobs of other models", async () => {
  const { cache, blobs } = await open();
  const shared = bytesOf(100);
  await add(cache, "good", [shared]);
  const build = async (put) => {
    await put(shared);
    await put(bytesOf(100, 2));
    throw new Error("no such operator");
  };
  assert.match((await refusal(cache.once("bad", build))).message, /no such operator/);
  async function* broken() {
    yield bytesOf(5);
    throw new Error("connection broke");
  }
  assert.match((await refusal(add(cache, "bad", [broken()]))).message, /connection broke/);
  assert.deepEqual([[...(await blobs.list()).keys()], await cache.manifest("bad")], [[sha256(shared)], undefined]);
});

test("a blob of another size is removed, and counts as missing with its manifest", async () => {
  const { cache, blobs } = await open();
  const content = bytesOf(100);
  const { blobs: [ref] } = await add(cache, "model", [content]);
  await blobs.write(ref.hash, content.subarray(0, 60));
  assert.equal(await cache.blob(ref), undefined);
  assert.deepEqual((await blobs.list()).size, 0);
  assert.equal(await cache.manifest("model"), undefined);
  assert.match((await refusal(cache.bytes(ref))).message, /import or download it again/);
  await add(cache, "model", [content]);
  assert.deepEqual(await cache.bytes(ref), content);
});

test("verify finds changed bytes", async () => {
  const { cache, blobs } = await open();
  const { blobs: [ref] } = await add(cache, "model", [bytesOf(100)]);
  assert.equal(await cache.verify(ref), true);
  await blobs.write(ref.hash, bytesOf(100, 2));
  assert.equal(await cache.verify(ref), false);
  assert.equal(await cache.manifest("model"), undefined);
});

test("a damaged manifest counts as missing", async () => {
  for (const text of ["{", "null", "[]", '{"key": "model", "blobs": [{"hash": "../x", "size": 1}], "used": 0}', '{"key": "other", "blobs": [], "used": 0}']) {
    const { cache, manifests } = await open();
    await add(cache, "model", [bytesOf(10)]);
    const [name] = (await manifests.list()).keys();
    await manifests.write(name, new TextEncoder().encode(text));
    assert.equal(await cache.manifest("model"), undefined, text);
    assert.equal((await manifests.list()).size, 0);
  }
});

test("prune removes unnamed blobs, then the least recently read models, and keeps shared blobs", async () => {
  const { cache, clock, blobs } = await open();
  const [shared, old, recent] = [1, 2, 3].map((seed) => bytesOf(10_000, seed));
  await blobs.write("unfinished.1", bytesOf(50));
  await add(cache, "old", [shared, old]);
  clock.minutes = 1;
  await add(cache, "recent", [shared, recent]);
  clock.minutes = 2;
  assert.deepEqual([await cache.prune(1e6), (await cache.usage()).blobs], [[], 3]);
  await cache.manifest("old");
  assert.deepEqual(await cache.prune(25_000), ["recent"]);
  assert.deepEqual([...(await blobs.list()).keys()].sort(), [sha256(shared), sha256(old)].sort());
  await cache.remove("old");
  assert.deepEqual(await cache.usage(), { bytes: 0, blobs: 0, manifests: 0 });
  assert.equal((await refusal(cache.prune(NaN))).kind, "Invalid");
});

test("prune and remove leave the blobs of a running import, which may download and import", async () => {
  const { cache, blobs } = await open();
  await add(cache, "old", [bytesOf(10, 2)]);
  const manifest = await cache.once("model", async (put) => {
    await put(bytesOf(10));
    await add(cache, "part", [bytesOf(10, 3)]);
    assert.equal((await refusal(cache.prune(0))).kind, "Conflict");
    await cache.remove("old");
    assert.equal((await blobs.list()).size, 3);
    return 1;
  });
  assert.ok(await cache.blob(manifest.blobs[0]));
  assert.equal((await blobs.list()).size, 2, "the end of the import removes unnamed blobs");
});

test("a full disk is an error with the way out, and the file is as before", async () => {
  const { cache, blobs, clock } = await open();
  const { CotensorError } = await import("cotensor");
  const manifest = await add(cache, "model", [bytesOf(10)]);
  const [folder] = [Object.getPrototypeOf(blobs)];
  const { write } = folder;
  folder.write = () => Promise.reject(new CotensorError("OverBudget", "full"));
  try {
    clock.minutes = 5;
    assert.deepEqual((await cache.manifest("model")).blobs, manifest.blobs, "reading works on a full disk");
    assert.equal((await refusal(add(cache, "more", [bytesOf(20)]))).kind, "OverBudget");
  } finally {
    folder.write = write;
  }
  assert.deepEqual((await cache.usage()).blobs, 1);
});

test("what a full disk does not take is kept in memory, if the import may", async () => {
  const { cache, blobs } = await open();
  const { CotensorError } = await import("cotensor");
  const { write } = Object.getPrototypeOf(blobs);
  let room = 1;
  for (const full of [() => new CotensorError("OverBudget", "full"), () => new DOMException("the folder was removed", "NotFoundError")]) {
    room = 1;
    blobs.write = function (...args) {
      return (room -= 1) < 0 ? Promise.reject(full()) : write.apply(this, args);
    };
    const key = full().message;
    const manifest = await cache.once(key, async (put) => [await put(bytesOf(100)), await put(bytesOf(200, 2))], true);
    assert.match(cache.reason, new RegExp(key));
    assert.deepEqual(await Promise.all(manifest.blobs.map((blob) => cache.bytes(blob))), [bytesOf(100), bytesOf(200, 2)]);
    assert.deepEqual([...(await blobs.list()).keys()], [], "the disk has no blob without a manifest");
    const again = await cache.once(key, () => assert.fail("it was built again"), true);
    assert.deepEqual(again.blobs, manifest.blobs);
    assert.equal((await refusal(cache.once("other", async (put) => put(bytesOf(5))))).message, key, "other imports are errors");
    await cache.remove(key);
    assert.equal(await cache.manifest(key), undefined);
    assert.equal(await cache.blob(manifest.blobs[0]), undefined);
  }
});

test("keys, manifests and sizes are checked", async () => {
  const { cache } = await open();
  assert.equal((await refusal(cache.manifest(""))).kind, "Invalid");
  assert.equal((await refusal(add(cache, "x".repeat(5000), []))).kind, "Invalid");
  assert.match((await refusal(add(cache, "large", [], "x".repeat(17 * 2 ** 20)))).message, /large: .* bytes; at most/);
});

// The files of a model on a server where they change.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { MemoryFolders, WeightCache } from "cotensor";
import { ModelFolder } from "../dist/models/folder.js";
import { bytesOf, newHasher, serveFiles } from "./support/files.mjs";

const NAME = "model.onnx";
const files = {};
let server;

before(async () => (server = await serveFiles(files)));
after(() => server.close());

const open = async () => new ModelFolder("model", new URL(server.url), await WeightCache.open({ newHasher, folders: new MemoryFolders("test") }));
const changed = { kind: "Conflict", message: /model\.onnx: the file changed on the server; open the model again/ };

test("a file that changes after its version was asked is refused, and read when it is asked again", async () => {
  for (const [first, second] of [
    [{ etag: '"1"' }, { etag: '"2"' }],
    [{ modified: "Mon, 01 Jun 2026 10:00:00 GMT" }, { modified: "Mon, 01 Jun 2026 10:00:01 GMT" }],
  ]) {
    for (const read of [(folder) => folder.bytes(NAME), (folder) => folder.range(NAME, 2, 3)]) {
      const folder = await open();
      files[NAME] = { body: bytesOf(100), ...first };
      const known = await folder.version(NAME);
      await read(folder);
      files[NAME] = { body: bytesOf(100, 2), ...second };
      await assert.rejects(read(folder), changed);
      assert.notEqual(await folder.version(NAME), known);
      await read(folder);
    }
  }
});

test("the forms of one ETag are one version", async () => {
  const forms = ['"1"', 'W/"1"', '"1-gzip"', 'W/"1--gzip"', '"1;br"'];
  for (const known of forms) {
    const folder = await open();
    files[NAME] = { body: bytesOf(100), etag: known };
    assert.ok(await folder.has(NAME));
    for (const etag of forms) {
      files[NAME] = { body: bytesOf(100), etag };
      assert.equal((await folder.bytes(NAME)).length, 100, `${known} ${etag}`);
    }
  }
});

test("a server that says no version is believed", async () => {
  const folder = await open();
  files[NAME] = { body: bytesOf(100) };
  assert.ok(await folder.has(NAME));
  files[NAME] = { body: bytesOf(100), etag: '"1"' };
  assert.equal((await folder.range(NAME, 0, 3)).length, 3);
});

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { brotliCompressSync, gzipSync } from "node:zlib";

/** The most bytes of the compressed module. */
const BYTES_MAX = 120_000;

test("the compressed module is small", async (context) => {
  const module = await readFile(new URL("../dist/wasm/cotensor_bg.wasm", import.meta.url));
  const [brotli, gzip] = [brotliCompressSync(module).length, gzipSync(module, { level: 9 }).length];
  context.diagnostic(`module: ${module.length} bytes, ${brotli} with brotli (at most ${BYTES_MAX}), ${gzip} with gzip`);
  assert.ok(brotli <= BYTES_MAX, `${brotli} bytes with brotli; at most ${BYTES_MAX}`);
});

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { brotliCompressSync, gzipSync } from "node:zlib";

/** The most bytes of the compressed module of core and store, which every page loads. */
const BYTES_MAX = 120_000;
/** The most bytes of the other one: a first visit on WebGPU has 2 MB beside onnxruntime-web, with gzip. */
const MODELS_BYTES_MAX = 1_235_000;

async function measure(context, path, limit) {
  const module = await readFile(new URL(`../dist/${path}`, import.meta.url));
  const [brotli, gzip] = [brotliCompressSync(module).length, gzipSync(module, { level: 9 }).length];
  context.diagnostic(`${path}: ${module.length} bytes, ${brotli} with brotli (${limit}), ${gzip} with gzip`);
  return brotli;
}

test("the compressed module is small", async (context) => {
  const brotli = await measure(context, "wasm/cotensor_bg.wasm", `at most ${BYTES_MAX}`);
  assert.ok(brotli <= BYTES_MAX, `${brotli} bytes with brotli; at most ${BYTES_MAX}`);
});

test("the module of models, which is loaded with the first model, does not grow unnoticed", async (context) => {
  const brotli = await measure(context, "models/cotensor_models_bg.wasm", `at most ${MODELS_BYTES_MAX}`);
  assert.ok(brotli <= MODELS_BYTES_MAX, `${brotli} bytes with brotli; at most ${MODELS_BYTES_MAX}`);
});

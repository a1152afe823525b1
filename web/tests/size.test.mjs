import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { gzipSync } from "node:zlib";

/** The most bytes of the module of core and store, which every page loads, as gzip sends it. */
const BYTES_MAX = 144_000;
/** Those of the other one: a first visit on WebGPU has 2 MB beside onnxruntime-web. */
const MODELS_BYTES_MAX = 1_720_000;

async function measure(context, path, limit) {
  const module = await readFile(new URL(`../dist/${path}`, import.meta.url));
  const gzip = gzipSync(module, { level: 9 }).length;
  context.diagnostic(`${path}: ${module.length} bytes, ${gzip} with gzip (at most ${limit})`);
  assert.ok(gzip <= limit, `${gzip} bytes with gzip; at most ${limit}`);
}

test("the compressed module is small", (context) => measure(context, "wasm/cotensor_bg.wasm", BYTES_MAX));

test("the module of models, which is loaded with the first model, does not grow unnoticed", (context) =>
  measure(context, "models/cotensor_models_bg.wasm", MODELS_BYTES_MAX));

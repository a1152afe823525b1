// The package in Node without options: models from folders of the disk, on the library that is installed.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { createBertModel, createWebGPUBackend, createVitModel } from "cotensor";

const tiny = fileURLToPath(new URL("../../fixtures/tiny/", import.meta.url));
const photo = fileURLToPath(new URL("../../fixtures/media/photo.png", import.meta.url));

test("models of a folder run in Node, and inputs are files", async () => {
  const backend = await createWebGPUBackend({ models: tiny });
  assert.equal(backend.device, "cpu");
  assert.match(backend.skipped.webgpu, /WebGPU/);
  const bert = createBertModel(backend, { modelId: "bert" });
  const same = createBertModel(backend, { modelId: join(tiny, "bert") });
  const [first, second] = [await bert.process("a photo of a cat"), await same.process("a photo of a cat")];
  assert.deepEqual([first.answer, first.stages[0].computed, second.stages[0].computed], [{ type: "embedding", width: 32 }, true, false]);
  const vit = createVitModel(backend, { modelId: new URL(`file://${tiny}vit`).href });
  const [file, address] = [await vit.process({ image: await readFile(photo) }), await vit.process({ image: photo })];
  assert.deepEqual(address.outputs[0].values, file.outputs[0].values);
  assert.equal(address.stages[0].computed, false);
  for (const [modelId, expected] of [["none", /NotFound .*config\.json/], ["/none/at/all", /NotFound/]]) {
    const missing = await createBertModel(backend, { modelId }).initialize().then(() => "none", ({ kind, message }) => `${kind} ${message}`);
    assert.match(missing, expected);
  }
  await backend.dispose();
});

test("a path is relative to the folder in which Node runs", async () => {
  const folder = await mkdtemp(join(tmpdir(), "100% cotensor-"));
  try {
    const program = `import { createBertModel, createCpuBackend } from ${JSON.stringify(new URL("../dist/index.js", import.meta.url).href)};
      const backend = await createCpuBackend();
      const failure = await createBertModel(backend, { modelId: "./bert" }).initialize().then(() => "none", ({ message }) => message);
      console.log(failure);`;
    await writeFile(join(folder, "program.mjs"), program);
    const { stdout } = await promisify(execFile)(process.execPath, ["program.mjs"], { cwd: folder });
    assert.match(stdout, new RegExp(`100%25.*cotensor-.*/bert/`));
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
});

test("onnxruntime-node gives the numbers of WebAssembly, where it is installed", async (context) => {
  const native = await import("onnxruntime-node").catch(() => undefined);
  if (!native) return context.skip("onnxruntime-node is not installed");
  const values = [];
  for (const ort of [native, await import("onnxruntime-web")]) {
    const backend = await createWebGPUBackend({ ort, models: tiny });
    values.push((await createBertModel(backend, { modelId: "bert" }).process(["a photo", "of a cat beside a window"])).outputs[0].values);
    await backend.dispose();
  }
  const error = Math.max(...values[0].map((value, index) => Math.abs(value - values[1][index])));
  assert.ok(error < 1e-5, `${error}`);
});

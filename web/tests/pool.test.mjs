// The resource pool in a Chromium without WebGPU: devices that are skipped, one loaded copy, bounded concurrency, shared tensors.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openBrowser } from "./support/browsers.mjs";

let site;
before(async () => (site = await openBrowser("plain")));
after(() => site?.close());

/** Runs `program(pool, cotensor)` in the page. */
const withPool = (program, options = {}) =>
  site.page.evaluate(`(async () => {
    const cotensor = await import("cotensor");
    const pool = new cotensor.ResourcePoolBridgeIntegration({ models: "/models/", ...${JSON.stringify(options)} });
    try {
      return await (${program})(pool, cotensor);
    } finally {
      await pool.dispose();
    }
  })()`);

test("models by type and name: one copy, skipped devices with the reason, results that other models share", async () => {
  const seen = await withPool(async (pool) => {
    const manager = await pool.setupTensorSharing({ maxMemoryMb: 64 });
    const model = await pool.getModel("vision", "google/vit-base-patch16-224");
    const again = await pool.getModel("vit", "google/vit-base-patch16-224");
    const image = await (await fetch("/fixtures/media/photo.png")).blob();
    const result = await model({ image });
    const shared = await pool.shareTensorBetweenModels({
      tensorData: result.output_tensors.vision_embedding,
      tensorName: "vit_embedding",
      producerModel: "vit",
      consumerModels: ["clip", "detr"],
      storageType: "webgpu",
    });
    const report = manager.optimizeMemoryUsage();
    return { same: model === again, device: model.device, skipped: model.skipped, holders: shared.holders, onto: shared.device, limit: manager.getStats().max_memory_bytes, freed: typeof report.memory_reduction_percent };
  });
  assert.deepEqual([seen.same, seen.device, seen.onto, seen.limit, seen.freed], [true, "cpu", "cpu", 64 * 2 ** 20, "number"]);
  assert.match(seen.skipped.webgpu, /no (adapter of )?WebGPU|no memory on webgpu/);
  assert.deepEqual(Object.values(seen.holders), [1, 1, 1]);
});

test("wrong types, unknown precisions and lists without a usable device are refused", async () => {
  const seen = await withPool(async (pool) => {
    const refusal = (call) => call.then(() => "nothing", ({ kind, message }) => `${kind}: ${message}`);
    return Promise.all([
      refusal(pool.getModel("text_embedding", "google/vit-base-patch16-224")),
      refusal(pool.getModel("vit", "google/vit-base-patch16-224", { precision: "int3" })),
      refusal(pool.getModel("vit", "google/vit-base-patch16-224", { priorityList: ["webgpu"] })),
    ]);
  });
  assert.match(seen[0], /^Invalid: modelType: .* of the family vit, not of the type text_embedding/);
  assert.match(seen[1], /^Invalid: .*int3/);
  assert.match(seen[2], /^Unsupported: priorityList: no preferred device can be used \(webgpu: /);
});

test("at most so many inputs are processed at a time", async () => {
  const seen = await withPool(
    async (pool) => {
      const model = await pool.getModel("bert", "bert-base-uncased");
      let [running, most] = [0, 0];
      const process = model.model.process.bind(model.model);
      model.model.process = async (input) => {
        most = Math.max(most, (running += 1));
        try {
          return await process(input);
        } finally {
          running -= 1;
        }
      };
      await Promise.all(["a", "b", "c", "d", "e"].map((text) => model(text)));
      return most;
    },
    { maxConnections: 2 },
  );
  assert.equal(seen, 2);
});

// Weights of few bits in browsers: folders that `cotensor quantize` wrote, on the CPU and on WebGPU, and what a page refuses with the reason.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import { hasWebGpu, openBrowser } from "./support/browsers.mjs";

const LOW_BIT = new URL("../../fixtures/low-bit/", import.meta.url);
const REFERENCE = JSON.parse(await readFile(new URL("reference.json", LOW_BIT), "utf8"));
const REPORT = JSON.parse(await readFile(new URL("bert/quantization.json", LOW_BIT), "utf8"));

const sites = {};
before(async () => {
  for (const name of ["plain", "chromium"]) sites[name] = await openBrowser(name);
});
after(() => Promise.all(Object.values(sites).map((site) => site.close())));

/** Runs `program(pool, cotensor, argument)` in a page whose server has another report, if one is given. */
async function withPool(site, program, { argument, report } = {}) {
  const page = await site.open();
  if (report !== undefined) await page.route("**/bert-4bit/quantization.json", (route) => route.fulfill({ body: JSON.stringify(report), contentType: "application/json" }));
  try {
    return await page.evaluate(`(async () => {
      const cotensor = await import("cotensor");
      const pool = new cotensor.ResourcePoolBridgeIntegration({ models: "/models/" });
      try {
        return await (${program})(pool, cotensor, ${JSON.stringify(argument)});
      } catch (error) {
        return String(error.kind ?? error.name) + ": " + error.message;
      } finally {
        await pool.dispose();
      }
    })()`);
  } finally {
    await page.close();
  }
}

for (const [name, device] of [["plain", "cpu"], ["chromium", "webgpu"]]) {
  test(`a model of 4 bits gives the embedding of the other languages on ${device}`, async (context) => {
    if (device === "webgpu" && !(await hasWebGpu(sites[name].page, context))) return;
    const seen = await withPool(
      sites[name],
      async (pool, { setupUltraLowPrecision }, text) => {
        const config = await setupUltraLowPrecision(pool, { modelName: "bert-4bit", modelType: "text", precisionBits: 4, mixedPrecision: false, extendedContext: true });
        const model = await pool.getModel("text", "bert-4bit", config.hardwarePreferences);
        const result = await model(text);
        const values = [...(await result.output_tensors.text_embedding.lease().read("test"))];
        return { config, values, device: model.device, graphs: model.quantization.graphs.length };
      },
      { argument: REFERENCE.text },
    );
    assert.equal(seen.device, device, JSON.stringify(seen));
    assert.equal(seen.values.length, REFERENCE.values.length);
    const furthest = Math.max(...seen.values.map((value, at) => Math.abs(value - REFERENCE.values[at])));
    assert.ok(furthest < 1e-4, `${furthest}`);
    assert.equal(seen.config.bitsPerWeight, 4.5);
    assert.match(seen.config.notices.join(), /the context stays/);
    assert.ok(seen.graphs > 0);
  });
}

const getModel = async (pool, _, preferences) => {
  const model = await pool.getModel("text", "bert-4bit", preferences);
  return { has: model.quantization !== undefined };
};

test("a page says what it needs instead of quantizing", async () => {
  const refusal = (argument, report) => withPool(sites.plain, getModel, { argument, report });
  assert.deepEqual(await refusal({ precision: 4 }), { has: true });
  assert.match(await refusal({ precision: 2 }), /^Unsupported: precision: .*no weights of 2 bits, and a page does not quantize: .*cotensor quantize MODEL --bits 2 -o/);
  assert.match(await refusal({ precision: 4, mixedPrecision: true }), /^Unsupported: precision: .*mixed widths.*--mixed --calibrate/);
  assert.match(await refusal({ mixedPrecision: true }), /^Invalid: mixedPrecision/);
  assert.match(await refusal({ precision: 16, mixedPrecision: true }), /^Unsupported: mixedPrecision/);
  // The variant of other programs.
  assert.match(await refusal({ precision: 8 }), /^NotFound: .*int8/);
});

test("reports of mixed widths, of 3 bits, and damaged ones", async () => {
  const open = (argument, report) => withPool(sites.plain, getModel, { argument, report });
  const graphs = REPORT.graphs;
  const mixed = (target_bits) => ({ ...REPORT, mixed: { is_mixed: true, target_bits } });
  assert.deepEqual(await open({ precision: 4, mixedPrecision: true }, mixed(4.5)), { has: true });
  for (const target of [3.9, 5, 8.5, null, undefined]) {
    assert.match(await open({ precision: 4, mixedPrecision: true }, mixed(target)), /^Unsupported: precision: .*no weights of 4 bits with mixed widths/, `${target}`);
  }
  const three = { ...REPORT, graphs: graphs.map((graph) => ({ ...graph, opens_in_onnxruntime: false, matrices: graph.matrices.map((matrix) => ({ ...matrix, bits: 3 })) })) };
  assert.match(await open({ precision: 3 }, three), /^Unsupported: .*products of 3 bits, for which onnxruntime-web has no operator/);
  const large = { ...REPORT, graphs: graphs.map((graph) => ({ ...graph, matrices: graph.matrices.map((matrix) => ({ ...matrix, rows: 2 ** 52 })) })) };
  for (const damaged of [{}, [], { graphs: [{}] }, { graphs: 7 }, large]) assert.match(await open({ precision: 4 }, damaged), /^Corrupt: .*quantization\.json/);
});

test("numbers of bits are checked by name", async () => {
  const seen = await withPool(sites.plain, (pool, { setupUltraLowPrecision }) => setupUltraLowPrecision(pool, { modelName: "bert-4bit", modelType: "text", precisionBits: 5 }));
  assert.match(seen, /^Unsupported: precisionBits: 5/);
});

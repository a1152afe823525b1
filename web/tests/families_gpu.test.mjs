// Every pair of families on one WebGPU device, in both orders, beside the CPU, in a headless Chromium that CHROMIUM names. Two devices suffice: one
// with all families in an order, one with the reverse. With WHOLE=1, each family is the first of a device too, so that no other one is between the two.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { hasWebGpu, openBrowser } from "./support/browsers.mjs";

/**
 * The graphs of each family: a case of the references whose inputs are read, or the shape of a text. Texts whose length is a multiple of four
 * use other programs than the others.
 */
const FAMILIES = {
  bert: [["bert", "model", [1, 8]]],
  clip: [["clip", "text_model", [1, 8]], ["clip", "vision_model", "b3"]],
  dinov2: [["dinov2", "model", "b3"]],
  siglip: [["siglip", "text_model", "b3"], ["siglip", "vision_model", "b3"]],
  vit: [["vit", "model", "b3"], ["vit", "head", "b3"]],
  whisper: [["whisper", "decoder_model", "b2s6"], ["whisper", "decoder_with_past_model", "b2s6.step1"]],
};
const NAMES = Object.keys(FAMILIES);
const ERROR_MAX = 1e-4;
const ORDERS = [NAMES, NAMES.toReversed()];
if (process.env.WHOLE === "1") ORDERS.push(...NAMES.slice(1).map((first) => [first, ...NAMES.filter((name) => name !== first)]));
let browser;

before(async () => {
  browser = await openBrowser("chromium");
});
after(() => browser?.close());

for (const order of ORDERS) {
  test(`${order.join(", then ")} on one device equal the CPU`, async (context) => {
    if (!(await hasWebGpu(browser.page, context))) return;
    const seen = await browser.run(
      async ([families, order]) => {
        const { OrtEngine, Store } = await import("/index.js");
        const { create, newGpu, ort } = await import("/support/engine_page.mjs");
        const { readGraph, readReference } = await import("/support/models.mjs");
        const { relativeError } = await import("/support/safetensors.mjs");
        // The last token of CLIP's texts, at which it pools.
        const END = 699n;
        const text = (shape, names) => {
          const count = shape[0] * shape[1];
          const numbers = { attention_mask: () => 1n, token_type_ids: () => 0n, input_ids: (index) => (index % shape[1] === shape[1] - 1 ? END : BigInt(3 + ((index * 37) % 300))) };
          return Object.fromEntries(names.map((name) => [name, { data: BigInt64Array.from({ length: count }, (_, index) => numbers[name](index)), shape, dtype: "int64" }]));
        };
        const run = async (engine, [model, name, which], graphs) => {
          const graph = await engine.load({ files: await readGraph(model, name), label: `${model}/${name}` });
          graphs.push(graph);
          const isText = Array.isArray(which);
          const inputs = isText ? text(which, graph.inputs.map((port) => port.name)) : (await readReference(model, `${name}.${which}`)).inputs;
          if (isText && model === "bert") for (const [index, id] of inputs.input_ids.data.entries()) inputs.input_ids.data[index] = id % 300n;
          const names = graph.outputs.map((port) => port.name);
          const { outputs } = await graph.run(inputs, names);
          const numbers = [];
          for (const tensor of outputs) {
            numbers.push(tensor.device === "cpu" ? Float32Array.from(tensor.array()) : await tensor.read("compare with the CPU"));
            tensor.dispose();
          }
          return numbers.map((values, index) => [`${model}/${name} ${names[index]}`, values]);
        };
        const cpu = OrtEngine.create({ ort, store: await Store.create(), provider: "wasm" });
        const expected = {};
        for (const each of Object.values(families).flat()) Object.assign(expected, Object.fromEntries(await run(cpu, each, [])));
        await cpu.dispose();
        const errors = {};
        // All stay open: onnxruntime-web drops the programs of a device with its last session.
        const { gpu, store, engine } = await create({}, await newGpu());
        const graphs = [];
        for (const each of order.flatMap((name) => families[name])) {
          for (const [output, values] of await run(engine, each, graphs)) errors[output] = relativeError(values, expected[output]);
        }
        await engine.dispose();
        store.dispose();
        gpu.destroy();
        return errors;
      },
      [FAMILIES, order],
    );
    assert.ok(Object.keys(seen).length >= NAMES.length);
    for (const [name, error] of Object.entries(seen)) assert.ok(error <= ERROR_MAX, `${name}: ${error}`);
  });
}

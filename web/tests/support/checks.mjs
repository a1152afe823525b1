// Checks that run in Node and in browsers, on each provider of onnxruntime-web.
import { readGraph, readReference } from "./models.mjs";
import { relativeError } from "./safetensors.mjs";

/** The graphs of the tiny models with a case of their references each. */
export const CASES = [
  ["vit", "model", "b1"],
  ["vit", "model", "b3"],
  ["vit", "head", "b3"],
  ["clip", "vision_model", "b3"],
  ["clip", "text_model", "b1s6"],
  ["clip", "text_model", "b3s14"],
  ["clip", "head", "b1"],
  ["bert", "model", "b1s7"],
  ["bert", "model", "b3s16"],
  ["bert", "head", "b3s16"],
  ["bert", "head.entities", "b1s7"],
];

/** The largest error of each case over the deviation of the reference. `dimensions` gives values of symbols, if the provider needs them. */
export async function errorsOfCases(engine, dimensions = () => undefined, cases = CASES) {
  const errors = {};
  for (const [model, name, which] of cases) {
    const { inputs, outputs } = await readReference(model, `${name}.${which}`);
    const fixed = dimensions(inputs);
    const graph = await engine.load({ files: await readGraph(model, name), label: `${model}/${name}`, ...(fixed && { dimensions: fixed }) });
    try {
      // Twice: the first run may learn shapes that the second one uses.
      for (const round of [1, 2]) {
        const run = await graph.run(inputs, Object.keys(outputs), { holder: "test" });
        for (const [index, [output, expected]] of Object.entries(outputs).entries()) {
          const tensor = run.outputs[index];
          if (tensor.shape.join() !== expected.shape.join()) throw new Error(`${model}/${name}: ${tensor.shape}, expected ${expected.shape}`);
          const actual = tensor.device === "cpu" ? tensor.array() : await tensor.read("compare with the reference");
          errors[`${model}/${name} ${which} ${output} ${round}`] = relativeError(actual, expected.data);
          tensor.dispose();
        }
      }
    } finally {
      await graph.release();
    }
  }
  return errors;
}

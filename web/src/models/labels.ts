import { CotensorError } from "../errors.js";
import type { Labels, Problem } from "./answers.js";

const PROBLEMS: readonly Problem[] = ["single_label_classification", "multi_label_classification", "regression"];

/**
 * The labels of a head with `count` numbers: from labels.json, else from `id2label` and `problem_type` in config.json. If neither
 * file names labels, the names are `label 0`, `label 1` and so on.
 */
export function readLabels(model: string, config: Readonly<Record<string, unknown>>, file: string | undefined, head: string, count: number): Labels {
  const several: Problem = count === 1 ? "multi_label_classification" : "single_label_classification";
  const own = file === undefined ? undefined : (JSON.parse(file) as Record<string, unknown>)[head];
  if (own !== undefined) {
    const names = Array.isArray(own) && own.length === count && own.every((name) => typeof name === "string") ? own : undefined;
    if (!names) throw new CotensorError("Invalid", `${model}/labels.json: ${head}: a list of ${count} names is required, one for each number of the head`);
    return { names, problem: several };
  }
  const given = config["problem_type"] ?? several;
  if (!PROBLEMS.includes(given as Problem)) throw new CotensorError("Invalid", `${model}/config.json: problem_type: ${JSON.stringify(given)} is not known`);
  const problem = given === "single_label_classification" ? several : (given as Problem);
  const named = config["id2label"] as Record<string, unknown> | null | undefined;
  if (!named) {
    if (config["vocab_size"] === count) {
      throw new CotensorError("Invalid", `${model}/config.json: vocab_size: the head gives ${count} numbers, one for each word: it predicts words, not labels`);
    }
    return { names: Array.from({ length: count }, (_, index) => `label ${index}`), problem };
  }
  const names = Array.from({ length: count }, (_, index) => named[String(index)]);
  if (Object.keys(named).length === count && names.every((name) => typeof name === "string")) return { names, problem };
  const message = `${Object.keys(named).length} labels are named, the head gives ${count} numbers; name the labels of a head of your own in labels.json`;
  throw new CotensorError("Invalid", `${model}/config.json: id2label: ${message}`);
}

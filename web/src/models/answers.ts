// Answers of tasks, from the numbers that the last stage gives. The forms are those of Cotensor's other languages.
import { CotensorError } from "../errors.js";

/** The answer to an input. */
export type Answer =
  /** One label for the whole input, with its probability. */
  | { readonly type: "label"; readonly label: string; readonly probability: number }
  /** Labels that are right or wrong independently, best first. */
  | { readonly type: "labels"; readonly labels: readonly [label: string, probability: number][] }
  /** The numbers of a regression. */
  | { readonly type: "numbers"; readonly numbers: readonly [name: string, value: number][] }
  /** A label for each token that the tokenizer did not add. */
  | { readonly type: "tokens"; readonly tokens: readonly [token: string, label: string][] }
  /** The texts with their cosine similarity and their probability among the texts, best first. */
  | { readonly type: "ranking"; readonly texts: readonly [text: string, cosine: number, probability: number][] }
  /** A vector. */
  | { readonly type: "embedding"; readonly width: number }
  /** The text of speech. */
  | { readonly type: "transcript"; readonly text: string; readonly tokens: number };

/** The numbers behind an answer. */
export interface Output {
  readonly name: string;
  readonly shape: readonly number[];
  readonly values: Float32Array;
}

/** What the labels of a head mean. */
export type Problem = "single_label_classification" | "multi_label_classification" | "regression";

/** The labels of a head, one for each number that it gives. */
export interface Labels {
  readonly names: readonly string[];
  readonly problem: Problem;
}

/** The answer for the logits of a whole input. */
export function labelled(logits: Float32Array, { names, problem }: Labels): Answer {
  const named = (values: Float32Array): [string, number][] => [...values].map((value, index) => [names[index] ?? `label ${index}`, value]);
  if (problem === "regression") return { type: "numbers", numbers: named(logits) };
  if (problem === "multi_label_classification" && logits.length > 1) {
    return { type: "labels", labels: named(sigmoid(logits)).sort(([, a], [, b]) => b - a) };
  }
  const probabilities = problem === "single_label_classification" ? softmax(logits) : sigmoid(logits);
  const index = argmax(probabilities);
  return { type: "label", label: names[index] ?? `label ${index}`, probability: probabilities[index] ?? 0 };
}

/**
 * The width and the numbers of an output for one input: `[1, width]`, or `[1, rows, width]` where `rows` is given; 0 rows
 * accept any number.
 */
export function readRows(shape: readonly number[], values: Float32Array, task: string, rows?: number): number {
  const [batch, second = 0, third = 0] = shape;
  const width = rows === undefined ? second : third;
  const known = shape.length === (rows === undefined ? 2 : 3) && batch === 1 && width > 0 && (!rows || rows === second);
  if (!known) {
    const wanted = rows === undefined ? "[1, N], one row for the whole input" : `[1, ${rows || "rows"}, N], one row for each token`;
    throw new CotensorError("Unsupported", `${task} reads an output of shape ${wanted}; the model gives [${shape.join(", ")}]`);
  }
  if (!values.every(Number.isFinite)) throw new CotensorError("Engine", `${task}: the output has a number that is not finite`);
  return width;
}

/** The index of the highest number; of several, the lowest. */
export function argmax(values: Float32Array): number {
  return values.reduce((best, value, index) => (value > (values[best] ?? -Infinity) ? index : best), 0);
}

/** Sigmoid of each number. */
export function sigmoid(logits: Float32Array): Float32Array {
  return logits.map((logit) => 1 / (1 + Math.exp(-logit)));
}

/** Softmax of one row. */
export function softmax(logits: Float32Array): Float32Array {
  const max = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const exponentials = logits.map((logit) => Math.exp(logit - max));
  const sum = exponentials.reduce((a, b) => a + b, 0);
  return exponentials.map((value) => value / sum);
}

/** A vector of length 1 with the direction of `vector`; zeros stay zeros. */
export function normalized(vector: Float32Array): Float32Array {
  const norm = Math.sqrt(dot(vector, vector));
  return norm > 0 ? vector.map((value) => value / norm) : vector.slice();
}

/** The sum of the products of two vectors. */
export function dot(a: Float32Array, b: Float32Array): number {
  return a.reduce((sum, value, index) => sum + value * (b[index] ?? 0), 0);
}

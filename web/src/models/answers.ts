// Answers of tasks. The forms are those of Cotensor's other languages.

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
  /** The texts with their scores for the text of the input, best first. */
  | { readonly type: "scores"; readonly texts: readonly [text: string, score: number][] }
  /** The objects in an image, in the order in which the model gives them. */
  | { readonly type: "objects"; readonly objects: readonly DetectedObject[] }
  /** A vector. */
  | { readonly type: "embedding"; readonly width: number }
  /** Text that a decoder wrote. A continuation does not repeat the prompt, which has `prompt_tokens` tokens. */
  | { readonly type: "text"; readonly text: string; readonly tokens: number; readonly prompt_tokens: number }
  /** The spoken language: its code, and its probability among the languages. */
  | { readonly type: "language"; readonly language: string; readonly probability: number }
  /** The text of speech. */
  | { readonly type: "transcript"; readonly text: string; readonly tokens: number };

/** The numbers behind an answer. */
export interface Output {
  readonly name: string;
  readonly shape: readonly number[];
  readonly values: Float32Array;
}

/** An object in an image. */
export interface DetectedObject {
  readonly label: string;
  /** The probability, 0 to 1. */
  readonly score: number;
  /** Left, top, right and bottom in pixels of the image. */
  readonly box: readonly [left: number, top: number, right: number, bottom: number];
}

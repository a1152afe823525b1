// The descriptions of families and tasks that the module of models gives as JSON. The data is families.toml of the Rust side.
import type { Port } from "../engine/api.js";
import type { Kind } from "../types.js";

/** One graph of a model. */
export interface StageDef {
  readonly role: string;
  readonly kind: Kind;
  /** The graph's file in the model's folder; null where the model has none. */
  readonly file: string | null;
  /** The media whose preprocessing is part of the space. */
  readonly media: readonly ("text" | "image" | "audio")[];
  /** The role of the stage that this one continues. */
  readonly rest_of: string | null;
  /** Whether texts are filled up to the most tokens that the tokenizer gives. */
  readonly fills_texts: boolean;
  /** Graph input by name, with its source: `text.ids`, `image.pixels`, `ROLE.OUTPUT`. */
  readonly inputs: Readonly<Record<string, string>>;
  /** The same, for inputs that some exports leave out. */
  readonly inputs_optional: Readonly<Record<string, string>>;
  readonly outputs: readonly string[];
  readonly output_aliases: readonly string[];
}

/** How the last output of a task becomes an answer. */
export type AnswerKind = "label" | "label-per-token" | "scores" | "sentence" | "text" | "first-token" | "embedding" | "similarity" | "objects" | "transcript" | "language" | "ctc";

/** What a user of a model can request. */
export interface Task {
  readonly name: string;
  /** The roles of the stages, in order. */
  readonly stages: readonly string[];
  /** The roles that run, with the decoder in the form that the model has. */
  readonly roles: readonly string[];
  /** The kinds of inputs that the stages read. */
  readonly reads: readonly ("text" | "image" | "audio")[];
  /** Whether the decoder continues the text. Otherwise it begins with the token that starts a text. */
  readonly prompt: boolean;
  /** Whether a text of the program is the beginning of the decoder's text. */
  readonly begins: boolean;
  /** Whether a head runs after them. */
  readonly head: boolean;
  /** Whether the class in config.json has a head for the task. */
  readonly has_head: boolean;
  /** The output that is the answer itself, in graphs that have it. */
  readonly result: string | null;
  readonly answer: AnswerKind;
}

/** The graphs of a decoder. */
export interface DecoderDef {
  /** The forms in which exports have it, each with the roles of its graphs. */
  readonly forms: readonly (readonly string[])[];
  /** The role of the graph that embeds tokens, for graphs that read embeddings. */
  readonly embed: string | null;
}

/** How the similarity of two embeddings becomes a probability. */
export interface SimilarityDef {
  /** The output of the whole graph that has the logits. */
  readonly logits: string;
  /** The checkpoint's tensor with the logarithm of the scale. */
  readonly scale: string;
  readonly bias: string | null;
  readonly probability: "softmax" | "sigmoid";
}

/** A family with the stages and tasks of one model. */
export interface FamilyDescription {
  readonly name: string;
  readonly kinds: readonly Kind[];
  readonly model_type: string;
  readonly variant: string | null;
  readonly stages: readonly StageDef[];
  readonly tasks: readonly Task[];
  readonly decoder: DecoderDef | null;
  /** Whether the positions of a text depend on the longest text of a batch. */
  readonly positions_depend_on_length: boolean;
  readonly similarity: SimilarityDef | null;
  /** The graph that computes logits of similarities. */
  readonly whole_graph: string | null;
}

/** The name of the output of heads. */
export const LOGITS = "logits";

/** The source of an input of the stage. A name that ends with `*` stands for all inputs that begin so. */
export function sourceOf(def: StageDef, input: string): string | undefined {
  const byStart = Object.keys(def.inputs_optional).find((name) => name.endsWith("*") && input.startsWith(name.slice(0, -1)));
  return def.inputs[input] ?? def.inputs_optional[input] ?? (byStart === undefined ? undefined : def.inputs_optional[byStart]);
}

/** The dimensions of an input as the module reads them: 0 for one that varies. */
export function dimensionsOf({ shape }: Port): Uint32Array {
  return Uint32Array.from(shape, (dimension) => (typeof dimension === "number" ? dimension : 0));
}

/** The number of tokens of each text that a graph reads, if it is fixed. */
export function fixedLength(def: StageDef, inputs: readonly Port[]): number | undefined {
  const tokens = inputs.find(({ name }) => sourceOf(def, name) === "text.ids")?.shape[1];
  return typeof tokens === "number" ? tokens : undefined;
}

/** Whether an input of the stage comes from `medium`. */
export function reads(def: StageDef, medium: string): boolean {
  return Object.values(def.inputs).some((source) => source.startsWith(`${medium}.`));
}

/** Whether an output of a graph with this name is the result of the stage. */
export function isResult(def: StageDef, output: string): boolean {
  return [...def.outputs.slice(0, 1), ...def.output_aliases].includes(output);
}

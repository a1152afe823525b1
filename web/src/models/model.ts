// Models by family, with the calls of docs/reference/api-names.md.
import { CotensorError } from "../errors.js";
import type { SharedTensor } from "../shared_tensor.js";
import type { SharedTensorConfig } from "../store.js";
import type { Device, Kind } from "../types.js";
import type { ModelInput, Tokens } from "./inputs.js";
import type { Result } from "./result.js";

/** How a decoder writes; by default as the files of the model say. */
export interface GenerationOptions {
  /** Whether a text is a message of a chat, which the model answers; by default, only a text about an image is. */
  readonly chat?: boolean;
  /** The most tokens that a model writes. */
  readonly maxNewTokens?: number;
  /** The tokens before which a text does not end. */
  readonly minNewTokens?: number;
  /** Whether tokens are drawn; otherwise the likeliest one is written. */
  readonly doSample?: boolean;
  readonly temperature?: number;
  /** Of how many tokens one is drawn. */
  readonly topK?: number;
  /** The probability of the likeliest tokens of which one is drawn. */
  readonly topP?: number;
  /** Equal seeds draw equal tokens. */
  readonly seed?: number;
}

/** Options of a model's answers. */
export interface AnswerOptions extends GenerationOptions {
  /** Objects with a score above it are given, 0 to 1; 0.5 by default. */
  readonly threshold?: number;
  /** The prompt before texts to embed: a name in config_sentence_transformers.json, such as `query`; by default, the file's default prompt. */
  readonly promptName?: string;
}

/** Options of a model. */
export interface ModelOptions extends AnswerOptions {
  /** A path or URL of a folder, or the model's name: in the backend's folder of models, or on the hub. */
  readonly modelId: string;
  /** The task; by default the one that the class in config.json means for the input. */
  readonly task?: string;
  /** The name of a head: `NAME` of the file `onnx/NAME.onnx`. */
  readonly head?: string;
  /** Which files: `fp32`, `fp16`, `int8`, `q4`, …; by default the first that the model has. */
  readonly variant?: string;
  /** `false` runs the graphs as they are, without the engine's fused operations. */
  readonly useOptimizedOps?: boolean;
  /** The tensors that are shared; the same for all models of a backend. */
  readonly sharedTensorConfig?: SharedTensorConfig;
}

/** Options of one call. */
export interface CallOptions {
  /**
   * Ends the waiting of this call. A download that other callers wait for too goes on; a text that this call decodes is not written to its
   * end, and another caller that waits for it decodes it.
   */
  readonly signal?: AbortSignal;
  /**
   * Of `process`: called with each piece of a text that a decoder writes. A text that another call has decoded comes at once. An error of the
   * function ends the call.
   */
  readonly onText?: (piece: string) => void;
}

/** Tensors of other models, under any names. */
export type SharedTensors = Readonly<Record<string, SharedTensor>> | readonly SharedTensor[];

/** A model. It holds the tensors of its last input until the next one, or until it is disposed. */
export interface FamilyModel {
  /** Its name, which is also the holder of its tensors. */
  readonly modelId: string;
  /** The family, such as `vit`; known once it is initialized. */
  readonly family: string;
  /** The device that it runs on. */
  readonly device: Device;
  /** Loads what the tasks without a head need. Without this call, the first input does so. */
  initialize(options?: CallOptions): Promise<void>;
  /** The tokens of a text, as the model reads them. */
  tokenize(text: string, options?: CallOptions): Promise<Tokens>;
  /** The same, under the API's name for models of several media. */
  tokenizeText(text: string, options?: CallOptions): Promise<Tokens>;
  /** Runs the task on an input. The stages whose results exist do not run. */
  process(input: ModelInput, options?: CallOptions): Promise<Result>;
  /** As `process`, with another model's tensor in place of a stage of this model. */
  processWithSharedEmbedding(input: ModelInput, tensor: SharedTensor, options?: CallOptions): Promise<Result>;
  /** As `process`, with tensors of other models in place of stages. */
  processWithSharedEmbeddings(tensors: SharedTensors, input?: ModelInput, options?: CallOptions): Promise<Result>;
  /** The tensor of a kind that the model made of its last input. */
  getSharedTensor(kind: Kind): SharedTensor;
  /** Acquires a tensor once for this model. */
  useSharedTensor(tensor: SharedTensor): void;
  /** Releases one acquire of this model. */
  releaseSharedTensor(tensor: SharedTensor): void;
  /** Releases every tensor that the model holds, and its graphs, unless other models use them. */
  dispose(): Promise<void>;
}

/** The tensors that one model holds. */
export class HeldTensors {
  readonly #made = new Map<Kind, SharedTensor>();
  readonly #used: SharedTensor[] = [];

  constructor(private readonly holder: string) {}

  /** Replaces the tensors of the last input. */
  setMade(tensors: Partial<Record<Kind, SharedTensor>>): void {
    for (const tensor of this.#made.values()) this.#release(tensor);
    this.#made.clear();
    for (const [kind, tensor] of Object.entries(tensors)) this.#made.set(kind as Kind, tensor);
  }

  made(kind: Kind): SharedTensor {
    const found = this.#made.get(kind);
    if (found) return found;
    const known = [...this.#made.keys()].join(", ") || "none: process an input first";
    throw new CotensorError("NotFound", `kind ${JSON.stringify(kind)}: ${this.holder} made no such tensor of its last input; it made ${known}`);
  }

  acquire(tensor: SharedTensor): void {
    tensor.acquire(this.holder);
    this.#used.push(tensor);
  }

  release(tensor: SharedTensor): void {
    const index = this.#used.lastIndexOf(tensor);
    if (index < 0) throw new CotensorError("Conflict", `${tensor.name} is not held by ${JSON.stringify(this.holder)}`);
    this.#used.splice(index, 1);
    tensor.release(this.holder);
  }

  releaseAll(): void {
    this.setMade({});
    for (const tensor of this.#used.splice(0)) this.#release(tensor);
  }

  /** A program may have released the tensor itself. */
  #release(tensor: SharedTensor): void {
    if (this.holder in tensor.holders) tensor.release(this.holder);
  }
}

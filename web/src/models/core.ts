// The second WebAssembly module: families, graphs, keys, preprocessing and the rules of decoding. It is loaded when the first model is.
import type { HostArray } from "../engine/api.js";
import { moduleLoader } from "../module.js";
import type { StageHashes } from "../stage/keys.js";
import type { DType, Kind } from "../types.js";
import type { Hasher } from "../weights/hash.js";
import type { Answer } from "./answers.js";
import init, { ContentHasher, GraphFile, arrayIdentity, outputIdentity, stageKey, type ArrayHandle, type Task } from "./cotensor_models.js";

export {
  AnswerReader,
  AnswerWithNumbers,
  ArrayHandle,
  AudioProcessor,
  CheckpointHeader,
  ConfigFiles,
  ContentHasher,
  Decoding,
  Generation,
  GraphFile,
  ImageProcessor,
  ModelFamily,
  NamedNumbers,
  PairPrompts,
  SentencePooling,
  SpeechWindows,
  StageGraph,
  TextProcessor,
  Tokens,
  contentHash,
  imageSize,
  inputKey,
  keyOnce,
  runLength,
  scaleBeforeTraining,
  soundLength,
  stageKey,
} from "./cotensor_models.js";

/** What `ModelFamily.candidates` returns, as JSON. */
export interface Candidates {
  /** Files that may be graphs of the model, the preferred ones of each stage first. */
  readonly graphs: readonly string[];
  /** Files by which families with the same `model_type` differ. */
  readonly recognized_by: readonly string[];
}

/** An input or output of a graph, as the graph declares it. */
export interface PortDescription {
  readonly name: string;
  readonly dtype: DType | null;
  /** `null` for a dimension that varies. */
  readonly shape: readonly (number | null)[] | null;
}

/** A weight of a graph. */
export interface WeightDescription {
  readonly name: string;
  /** BLAKE3 of the content, 64 hexadecimal digits. */
  readonly hash: string;
  readonly bytes: number;
  readonly dtype: DType;
  readonly shape: readonly number[];
}

/** What `StageGraph.describe` returns, as JSON. */
export interface StageGraphDescription {
  readonly role: string;
  readonly kind: Kind;
  /** The encoder: 64 hexadecimal digits. */
  readonly space: string;
  readonly precision: DType;
  /** The input that reads the result of the stage before, which is the graph before in the list. */
  readonly continues: string | null;
  /** An operator by which a row of a batch depends on the other rows. */
  readonly joins_rows: string | null;
  readonly inputs: readonly PortDescription[];
  readonly outputs: readonly PortDescription[];
  readonly weights: readonly WeightDescription[];
}

/** What runs a graph, in keys. */
export interface Execution {
  readonly engine: string;
  readonly version: string;
  readonly precision: DType;
  /** The engine's kernels, if it has several. */
  readonly variant?: string;
}

/** What identifies the results of a stage beside its inputs; as JSON, the first argument of `keyOnce`. */
export interface StageIdentity extends Execution {
  readonly space: string;
}

/** What `stageKey` of the module reads, as JSON. */
export interface KeyRequest {
  readonly stage: StageIdentity;
  /** What runs the stage whose result this one reads, where one call runs both. */
  readonly before?: Execution;
  readonly inputs: Readonly<Record<string, string>>;
  readonly outputs: readonly string[];
}

/** The JSON that `AnswerReader.answer` reads. */
export interface AnswerRequest {
  readonly task: string;
  /** `null` for the model's own head. */
  readonly head: string | null;
  /** The texts that are compared with another input. */
  readonly texts: readonly string[];
  /** The lowest score of an object; `null` for the default. */
  readonly threshold: number | null;
  /** Width and height of the image before preprocessing, in pixels. */
  readonly image_size: readonly [width: number, height: number] | null;
  /** The number of tokens of the model's prompt for sentence embeddings. */
  readonly prompt_tokens: number;
}

/** The result of the task of `Generation.answer`. */
export type DecodedAnswer = readonly [answer: Answer, outputs: readonly { readonly name: string; readonly shape: readonly number[]; readonly values: readonly number[] }[]];

/** Loads the module, once. After a failed attempt, the next call tries again. Everything else here works after it. */
export const loadModels = moduleLoader("models", () => new URL("./cotensor_models_bg.wasm", import.meta.url), init);

/** Reads a graph's file and the files beside it, whose locations are relative to it. The arrays must not change while the graph is used. */
export async function openGraph(file: string, bytes: Uint8Array, external: (location: string) => Promise<Uint8Array>): Promise<GraphFile> {
  await loadModels();
  const locations = GraphFile.locations(file, bytes);
  return new GraphFile(file, bytes, locations, await Promise.all(locations.map(external)));
}

/** Runs a task of the module, which is freed. An error of the page ends it. */
export async function runTask<Result>(task: Task): Promise<Result> {
  let result: string;
  try {
    for (let wait: unknown = task.poll(undefined); wait !== undefined; ) wait = task.poll(await wait);
    result = task.result();
  } catch (error) {
    try {
      task.free();
    } catch {
      // After a panic, the module takes the task for used.
    }
    throw error;
  }
  task.free();
  return JSON.parse(result) as Result;
}

/** The elements of an array, which is freed. */
export function takeArray(handle: ArrayHandle): HostArray {
  try {
    const { dtype } = handle;
    const shape = [...handle.shape];
    // The module copies the elements into arrays of their own.
    if (dtype === "float32") return { data: handle.floats() as Float32Array<ArrayBuffer>, shape, dtype };
    if (dtype === "int64") return { data: handle.integers() as BigInt64Array<ArrayBuffer>, shape, dtype };
    return { data: handle.bytes() as Uint8Array<ArrayBuffer>, shape, dtype: dtype as DType };
  } finally {
    handle.free();
  }
}

/** A hasher of content. */
export function newHasher(): Hasher {
  const hasher = new ContentHasher();
  return {
    update: (bytes) => hasher.update(bytes),
    digest: () => {
      const digits = hasher.digest();
      hasher.free();
      return digits;
    },
  };
}

/** The hashes of keys, equal to those of Cotensor's other languages. */
export const hashes: StageHashes = {
  stageKey({ space, engine, version, precision, variant, inputs, outputs }) {
    const stage: StageIdentity = { space, engine, version, precision, variant };
    const request: KeyRequest = { stage, inputs: Object.fromEntries(inputs.map(({ name, identity }) => [name, identity])), outputs };
    return stageKey(JSON.stringify(request));
  },
  identity: (dtype, shape, bytes) => arrayIdentity(dtype, Uint32Array.from(shape), bytes),
  provenance: outputIdentity,
};

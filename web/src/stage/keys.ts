// What the result of a stage depends on.
import type { Graph, Input } from "../engine/api.js";
import { Tensor } from "../tensor.js";
import { bytesOf, dtypeOf, type DType } from "../types.js";

/** The parts of a stage's key. */
export interface StageKeyParts {
  /** The encoder: the fingerprint of graph, weights and preprocessing, as 64 hexadecimal digits. */
  readonly space: string;
  readonly engine: string;
  readonly version: string;
  readonly precision: DType;
  readonly variant: string;
  readonly inputs: readonly { readonly name: string; readonly identity: string }[];
  readonly outputs: readonly string[];
}

/** The hashes of keys, which the module of models computes as Cotensor's other languages do. All are 64 hexadecimal digits. */
export interface StageHashes {
  /** The key of a stage's result. */
  stageKey(parts: StageKeyParts): string;
  /** The identity of an array: a hash of type, shape and elements. */
  identity(dtype: DType, shape: readonly number[], bytes: Uint8Array): string;
  /** The provenance of the output with that number in the result of a key. */
  provenance(key: string, index: number): string;
}

/** The key of a run of `graph`. */
export function stageKey(hashes: StageHashes, space: string, graph: Graph, inputs: Readonly<Record<string, Input>>, outputs: readonly string[]): string {
  const [engine, version] = graph.engine;
  const identities = Object.entries(inputs).map(([name, value]) => ({ name, identity: identity(hashes, value) }));
  const { precision, variant } = graph;
  return hashes.stageKey({ ...{ space, engine, version, precision, variant, outputs }, inputs: identities });
}

/** The numbers of storages whose elements no hash names. */
const numbers = new WeakMap<object, number>();
let latest = 0;
/** Hashes of tensors in host memory, by storage and then by place in it. */
const known = new WeakMap<object, Map<string, string>>();

/** Equal identities are equal numbers. A tensor keeps its identity as long as it lives. */
export function identity(hashes: StageHashes, value: Input): string {
  if (!(value instanceof Tensor)) return hashes.identity(value.dtype ?? dtypeOf(value.data), value.shape, bytesOf(value.data));
  const { dtype, shape, strides, provenance } = value;
  const { buffer, offset } = value.binding<object>();
  if (provenance !== undefined && value.isWhole) return provenance;
  const place = JSON.stringify([dtype, shape, strides, offset]);
  const places = known.get(buffer) ?? new Map<string, string>();
  known.set(buffer, places);
  const found = places.get(place) ?? compute();
  places.set(place, found);
  return found;

  function compute(): string {
    if (provenance === undefined && value instanceof Tensor && value.device === "cpu" && value.isContiguous) {
      return hashes.identity(dtype, shape, bytesOf(value.array()));
    }
    // Reading the elements of a device costs more than computing a result twice.
    const source = provenance ?? `storage ${numberOf(buffer)}`;
    const bytes = new TextEncoder().encode(`cotensor view ${source} ${place}`);
    return hashes.identity("uint8", [bytes.length], bytes);
  }
}

function numberOf(storage: object): number {
  const number = numbers.get(storage) ?? (latest += 1);
  numbers.set(storage, number);
  return number;
}

// The parts of onnxruntime-web that the adapter uses. The program brings the library: `import * as ort from "onnxruntime-web/webgpu"`.
import type { MLContext, MLTensor } from "../memory/webnn.js";

/** A tensor of onnxruntime-web. */
export interface OrtTensor {
  readonly type: string;
  readonly dims: readonly number[];
  readonly location: string;
  /** Only on the host. */
  readonly data: ArrayBufferView | string[];
  readonly gpuBuffer: GPUBuffer;
  getData(releaseData?: boolean): Promise<ArrayBufferView | string[]>;
  dispose(): void;
}

/** One input or output of a graph. A dimension is a number, or the name of a symbol. */
export interface OrtValueMetadata {
  readonly name: string;
  readonly isTensor: boolean;
  readonly type?: string;
  readonly shape?: readonly (number | string)[];
}

/** A session of onnxruntime-web. */
export interface OrtSession {
  readonly inputMetadata: readonly OrtValueMetadata[];
  readonly outputMetadata: readonly OrtValueMetadata[];
  run(feeds: Record<string, OrtTensor>, fetches: Record<string, OrtTensor | null>): Promise<Record<string, OrtTensor>>;
  release(): Promise<void>;
}

/** An execution provider with its options. */
export type OrtProvider =
  | { name: "webgpu"; device: GPUDevice; storageBufferCacheMode: "lazyRelease" }
  | { name: "webnn"; context: MLContext }
  | { name: "wasm" }
  | { name: "cpu" };

/** The options of a session that the adapter sets. */
export interface OrtSessionOptions {
  executionProviders: OrtProvider[];
  preferredOutputLocation: string | Record<string, string>;
  externalData: { path: string; data: Uint8Array | Blob }[];
  freeDimensionOverrides: Record<string, number>;
  graphOptimizationLevel: "all" | "disabled";
}

/** The library. */
export interface Ort {
  readonly env: {
    readonly versions: { readonly web?: string; readonly node?: string };
    /** Where the library loads its files from: a folder, or files. */
    readonly wasm?: { wasmPaths?: string | { wasm?: string | URL; mjs?: string | URL } | undefined; readonly wasmBinary?: unknown };
  };
  readonly InferenceSession: { create(graph: Uint8Array, options: never): Promise<unknown> };
  readonly Tensor: {
    new (type: never, data: never, dims: number[]): unknown;
    fromGpuBuffer(buffer: never, options: never): unknown;
    fromMLTensor(tensor: never, options: never): unknown;
  };
}

/** The library with the adapter's types. Those of the library differ between its versions. */
export interface KnownOrt {
  readonly InferenceSession: { create(graph: Uint8Array, options: OrtSessionOptions): Promise<OrtSession> };
  readonly Tensor: {
    new (type: string, data: ArrayBufferView, dims: readonly number[]): OrtTensor;
    fromGpuBuffer(buffer: GPUBuffer, options: { dataType: string; dims: readonly number[] }): OrtTensor;
    fromMLTensor(tensor: MLTensor, options: { dataType: string; dims: readonly number[] }): OrtTensor;
  };
}

import type { Tensor } from "../tensor.js";
import type { ReservationOptions } from "../store.js";
import type { Device, DType } from "../types.js";

/** One input or output of a graph. */
export interface Port {
  readonly name: string;
  readonly dtype: DType;
  /** A number of elements, the name of a symbol, or nothing for a dimension that the graph does not name. */
  readonly shape: readonly (number | string | null)[];
}

/** An array of the program, as an input. The program does not write to it until the run ends. */
export interface HostArray {
  readonly data: ArrayBufferView<ArrayBuffer>;
  /** Dimensions, in elements. */
  readonly shape: readonly number[];
  /** Without it, the type of the array's numbers. */
  readonly dtype?: DType;
}

/** An input of a run. */
export type Input = Tensor | HostArray;

/** What an output becomes in the store. */
export type OutputOptions = Omit<ReservationOptions, "shape" | "dtype" | "device" | "holder" | "recompute"> & { readonly name: string };

/** Options of a run. */
export interface RunOptions {
  /** The holder of the outputs and of the inputs that the engine copies. */
  readonly holder?: string;
  /** The description of the output with that name and that place among the outputs. By default `LABEL/OUTPUT`. */
  readonly describe?: (output: string, index: number) => OutputOptions;
}

/** What a run gives. */
export interface RunResult {
  /** The outputs, in the order of the request. Each is one lease of the holder. */
  readonly outputs: Tensor[];
  /** Whether the configuration of sharing refused an output, so that no other holder finds any of them. */
  readonly isPrivate: boolean;
  /** The time of the run without waiting for other runs. For cached outputs, until the device finished. */
  readonly milliseconds: number;
}

/** A graph that is ready to run. */
export interface Graph {
  /** The name in errors and reports. */
  readonly label: string;
  readonly inputs: readonly Port[];
  readonly outputs: readonly Port[];
  /** The engine's name and version, part of every stage key: two versions may round differently. */
  readonly engine: readonly [name: string, version: string];
  /** The type in which the graph computes, part of every stage key. */
  readonly precision: DType;
  /** The kind of kernels, part of every stage key. */
  readonly variant: string;
  /** Where the outputs are. */
  readonly device: Device;

  /** Runs the graph. Runs of all graphs of one library take turns. */
  run(inputs: Readonly<Record<string, Input>>, outputs: readonly string[], options?: RunOptions): Promise<RunResult>;

  /** Gives the graph back. Its memory is freed with its last user, after the runs that were started. */
  release(): Promise<void>;
}

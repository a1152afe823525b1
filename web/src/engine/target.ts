// Where the graphs of an engine run.
import { CotensorError } from "../errors.js";
import { GpuMemory } from "../memory/gpu.js";
import { WebnnMemory, type MlStorage } from "../memory/webnn.js";
import type { Reservation } from "../reservation.js";
import type { Store } from "../store.js";
import type { Device } from "../types.js";
import type { KnownOrt, OrtProvider, OrtTensor } from "./ort.js";

/** An execution provider of onnxruntime-web. */
export type Provider = "webgpu" | "webnn" | "wasm";

/** A device, as the engine uses it. */
export interface Target {
  readonly provider: Provider;
  readonly device: Device;
  readonly options: OrtProvider;
  /** Where onnxruntime-web keeps outputs that it allocates. */
  readonly location: string;
  /** The types of elements that onnxruntime-web reads and writes in memory of the device. */
  readonly dtypes: ReadonlySet<string>;
  readonly gpu: GPUDevice | undefined;
  /** The memory of `gpu`. */
  readonly memory: GpuMemory | undefined;
  /** Resolves with a description when the device is lost. */
  readonly lost: Promise<string> | undefined;
  /** The way out then. */
  readonly way: string;
}

const GPU_DTYPES = ["float32", "float16", "int32", "int64", "uint32", "uint8", "bool"];

/** The target of that provider: the device of the store's memory. */
export function targetOf(provider: Provider, store: Store): Target {
  const none = { gpu: undefined, memory: undefined, lost: undefined, way: "" };
  if (provider === "wasm") return { provider, device: "cpu", options: { name: "wasm" }, location: "cpu", dtypes: new Set(), ...none };
  if (provider !== "webgpu" && provider !== "webnn") {
    throw new CotensorError("Invalid", `provider: ${JSON.stringify(provider)} is unknown; webgpu, webnn and wasm are known`);
  }
  const memory = store.memory(provider);
  if (memory instanceof GpuMemory) {
    const { gpu } = memory;
    // A session's buffers are destroyed once the GPU has the commands that use them: between runs only weights remain. The mode
    // "disabled" destroys them before, and runs fail.
    const options = { name: "webgpu", device: gpu, storageBufferCacheMode: "lazyRelease" } as const;
    const lost = gpu.lost.then(({ message, reason }) => `the GPU device was lost (${message || reason})`);
    const way = "create a store with a new GPUDevice, and load the graphs again";
    return { provider, device: "webgpu", options, location: "gpu-buffer", dtypes: new Set(GPU_DTYPES), gpu, memory, lost, way };
  }
  if (memory instanceof WebnnMemory) {
    const { context } = memory;
    const options = { name: "webnn", context } as const;
    const lost = context.lost.then(({ message }) => `the WebNN context was lost (${message || "no reason given"})`);
    const way = "create a store with a new MLContext, and load the graphs again";
    const dtypes = new Set([...GPU_DTYPES, "int8", "uint64"]);
    return { provider, device: "webnn", options, location: "ml-tensor", dtypes, gpu: undefined, memory: undefined, lost, way };
  }
  throw new CotensorError("Unsupported", `provider: the store's memory on ${provider} is of another class than those of this package`);
}

/** The memory of a reservation as a tensor of the library, to which a run writes. */
export async function outputTensor(ort: KnownOrt, reservation: Reservation, shape: readonly number[]): Promise<OrtTensor> {
  const options = { dataType: reservation.dtype, dims: [...shape] };
  if (reservation.device === "webgpu") return ort.Tensor.fromGpuBuffer(reservation.storage(), options);
  return ort.Tensor.fromMLTensor(await reservation.storage<MlStorage>().ready, options);
}

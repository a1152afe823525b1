import { CotensorError } from "../errors.js";
import type { DeviceMemory } from "./memory.js";

// TypeScript's library has the types of WebGPU without these constants.
declare const GPUBufferUsage: Record<"STORAGE" | "COPY_SRC" | "COPY_DST" | "MAP_READ", number>;
declare const GPUMapMode: Record<"READ", number>;

/** WebGPU copies multiples of this many bytes. */
const COPY_ALIGNMENT = 4;

/** Shaders of engines access vectors of this many bytes. Of a buffer that ends within a vector they lose the last elements. */
const VECTOR_BYTES = 16;

const aligned = (bytes: number): number => Math.ceil(bytes / COPY_ALIGNMENT) * COPY_ALIGNMENT;

/** The bytes of the buffer of a tensor. */
export const bufferBytes = (bytes: number): number => Math.ceil(bytes / VECTOR_BYTES) * VECTOR_BYTES;

/** The limits that models need as large as the adapter allows: those of buffers, and of compute shaders. */
const LIMITS = [
  ...["maxBufferSize", "maxStorageBufferBindingSize", "maxStorageBuffersPerShaderStage", "maxBindGroups", "maxBindingsPerBindGroup"],
  ...["maxComputeWorkgroupStorageSize", "maxComputeInvocationsPerWorkgroup", "maxComputeWorkgroupsPerDimension"],
  ...["maxComputeWorkgroupSizeX", "maxComputeWorkgroupSizeY", "maxComputeWorkgroupSizeZ"],
] as readonly (keyof GPUSupportedLimits & `max${string}`)[];
const FEATURES: readonly GPUFeatureName[] = ["shader-f16", "subgroups" as GPUFeatureName];

/** A new device of the browser's fastest adapter, or the reason why there is none. The caller destroys it. */
export async function requestGpu(): Promise<GPUDevice | string> {
  const api = (globalThis.navigator as Navigator | undefined)?.gpu as GPU | undefined;
  if (!api) return "the browser has no WebGPU here; it is offered in secure contexts";
  try {
    const adapter = await api.requestAdapter({ powerPreference: "high-performance" });
    if (!adapter) return "the browser has no adapter of WebGPU";
    // Some browsers lack some of the limits.
    const requiredLimits = Object.fromEntries(LIMITS.filter((name) => adapter.limits[name] !== undefined).map((name) => [name, adapter.limits[name]]));
    const requiredFeatures = FEATURES.filter((feature) => adapter.features.has(feature));
    return await adapter.requestDevice({ requiredLimits, requiredFeatures });
  } catch (error) {
    // Firefox before 141 has `navigator.gpu`, whose `requestAdapter` rejects.
    return `the browser gave no device of WebGPU: ${String(error)}`;
  }
}

/** The memory of a `GPUDevice`: a buffer for each tensor, as large as the tensor, rounded up to 16 bytes. */
export class GpuMemory implements DeviceMemory<GPUBuffer> {
  readonly device = "webgpu";
  /** The device of the buffers. */
  readonly gpu: GPUDevice;
  /** What failed for a buffer. WebGPU reports it later. */
  readonly #failed = new WeakMap<GPUBuffer, string>();
  readonly lost: Promise<string>;
  /** Buffers of programs, which may destroy them. */
  readonly #adopted = new WeakSet<GPUBuffer>();
  #lost: string | undefined;

  /** The program owns `gpu` and destroys it after the store. */
  constructor(gpu: GPUDevice) {
    this.gpu = gpu;
    this.lost = gpu.lost.then((info) => (this.#lost = info.message || info.reason));
  }

  get bindingAlignment(): number {
    return this.gpu.limits.minStorageBufferOffsetAlignment;
  }

  allocate(bytes: number): GPUBuffer {
    this.#check();
    const max = this.gpu.limits.maxBufferSize;
    if (bytes > max) {
      const way = "request the device with a larger limit maxBufferSize, or split the tensor";
      throw new CotensorError("Unsupported", `${bytes} bytes; a buffer of this GPUDevice has at most ${max}: ${way}`);
    }
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    this.gpu.pushErrorScope("out-of-memory");
    const buffer = this.gpu.createBuffer({ size: bufferBytes(bytes), usage });
    void this.#scope().then((error) => error && this.#failed.set(buffer, `the GPU had no memory for the tensor: ${error}; lower the budget of webgpu`));
    return buffer;
  }

  /**
   * A buffer of the program that is not mapped, with the usage `COPY_SRC`. One that was destroyed, or of another
   * device, is an error of the next read.
   */
  adopt(value: unknown): GPUBuffer | undefined {
    if (!(value instanceof GPUBuffer)) return undefined;
    this.#check();
    if ((value.usage & GPUBufferUsage.COPY_SRC) === 0) throw new CotensorError("Invalid", "the GPUBuffer has no usage COPY_SRC; create it with this usage");
    if (value.mapState !== "unmapped") throw new CotensorError("Invalid", "the GPUBuffer is mapped; unmap it first");
    this.#adopted.add(value);
    void this.#tested(value).then((refused) => refused !== undefined && this.#failed.set(value, refused));
    return value;
  }

  sizeBytes(storage: GPUBuffer): number {
    return storage.size;
  }

  write(storage: GPUBuffer, bytes: Uint8Array<ArrayBuffer>): void {
    this.#check(storage);
    const whole = bytes.byteLength - (bytes.byteLength % COPY_ALIGNMENT);
    const written = this.refusal(() => {
      if (whole > 0) this.gpu.queue.writeBuffer(storage, 0, bytes, 0, whole);
      if (whole === bytes.byteLength) return;
      const tail = new Uint8Array(COPY_ALIGNMENT);
      tail.set(bytes.subarray(whole));
      this.gpu.queue.writeBuffer(storage, whole, tail);
    });
    void written.then((error) => error !== undefined && this.#failed.set(storage, refused(error)));
  }

  /** Checks that a graph can read a buffer. One of a program is tested anew: the program may have destroyed it. */
  async checkReadable(storage: GPUBuffer): Promise<void> {
    this.#check(storage);
    const error = this.#adopted.has(storage) ? await this.#tested(storage) : undefined;
    if (error !== undefined) throw new CotensorError("Io", error);
  }

  async read(storage: GPUBuffer, offset: number, size: number): Promise<Uint8Array<ArrayBuffer>> {
    this.#check(storage);
    const start = offset - (offset % COPY_ALIGNMENT);
    const span = aligned(offset + size) - start;
    if (span === 0) return new Uint8Array();
    this.gpu.pushErrorScope("out-of-memory");
    const staging = this.gpu.createBuffer({ size: span, usage: GPUBufferUsage.COPY_DST | GPUBufferUsage.MAP_READ });
    const allocated = this.#scope();
    try {
      const copied = this.refusal(() => {
        const encoder = this.gpu.createCommandEncoder();
        encoder.copyBufferToBuffer(storage, start, staging, 0, span);
        this.gpu.queue.submit([encoder.finish()]);
      });
      const mapped = staging.mapAsync(GPUMapMode.READ).then(() => undefined, String);
      const [noMemory, error, unmapped] = await Promise.all([allocated, copied, mapped]);
      this.#check(storage);
      // The tensor itself may be good: the next read tries again.
      if (noMemory !== undefined) throw new CotensorError("Io", `the GPU had no memory to copy the tensor to the host: ${noMemory}`);
      if (error !== undefined) throw new CotensorError("Io", refused(error));
      if (unmapped !== undefined) throw new CotensorError("Io", `the GPU did not copy the tensor to the host: ${unmapped}`);
      return new Uint8Array(staging.getMappedRange().slice(offset - start, offset - start + size));
    } finally {
      staging.destroy();
    }
  }

  free(storage: GPUBuffer): void {
    storage.destroy();
  }

  /** Calls of the queue, and why the device refused one of them. Without this, the device skips it in silence. */
  refusal(calls: () => void): Promise<string | undefined> {
    this.gpu.pushErrorScope("validation");
    let scope;
    try {
      calls();
    } finally {
      // A scope that stays would take the errors of onnxruntime-web's.
      scope = this.#scope();
    }
    return scope;
  }

  /** Why a buffer cannot be read, if it cannot: the device's answer to the smallest copy, which WebGPU does not give otherwise. */
  async #tested(storage: GPUBuffer): Promise<string | undefined> {
    const error = await this.refusal(() => {
      const target = this.gpu.createBuffer({ size: COPY_ALIGNMENT, usage: GPUBufferUsage.COPY_DST });
      const encoder = this.gpu.createCommandEncoder();
      encoder.copyBufferToBuffer(storage, 0, target, 0, Math.min(storage.size, COPY_ALIGNMENT));
      this.gpu.queue.submit([encoder.finish()]);
      target.destroy();
    });
    return error === undefined ? undefined : refused(error);
  }

  /** The message of the innermost scope's error. A lost device has none. */
  #scope(): Promise<string | undefined> {
    return this.gpu.popErrorScope().then(
      (error) => (error ? error.message || "no reason given" : undefined),
      () => undefined,
    );
  }

  #check(storage?: GPUBuffer): void {
    if (this.#lost !== undefined) {
      const way = "create a store with a new GPUDevice";
      throw new CotensorError("Io", `the GPU device was lost (${this.#lost}); ${way}`);
    }
    const failed = storage && this.#failed.get(storage);
    if (failed) throw new CotensorError("Io", failed);
  }
}

function refused(error: string): string {
  return `the GPU refused the tensor's buffer: ${error}`;
}

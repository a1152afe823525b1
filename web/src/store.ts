// The store of a page, over the core module (web/wasm/src/store.rs). `memory/` has the bytes of each device.
import { loadCore, setVerboseLogging, StoreCore } from "./core.js";
import { CotensorError } from "./errors.js";
import { CpuMemory } from "./memory/cpu.js";
import type { DeviceMemory, Layout } from "./memory/memory.js";
import type { CopyReason, Diagnostics, OptimizeReport, Recommendations, Stats } from "./reports.js";
import { Reservation } from "./reservation.js";
import { StoreState } from "./state.js";
import { Tensor } from "./tensor.js";
import { bytesOf, checkElements, dtypeOf, type Device, type DType, type Kind } from "./types.js";

/** The holder of leases that no other holder is named for. */
export const DEFAULT_HOLDER = "page";

/** The tensors that are shared. Others are refused and counted. */
export interface SharedTensorConfig {
  readonly enableSharedTensors?: boolean;
  readonly allowedTypes?: readonly Kind[];
  /** In bytes. */
  readonly maxSharedTensorSize?: number;
}

/** Options of a store. */
export interface StoreOptions {
  /** A memory for each device other than the host. */
  readonly memories?: readonly DeviceMemory[];
  /** The most bytes of all tensors on a device; without it there is no limit. */
  readonly budgets?: Partial<Record<Device, number>>;
  readonly sharedTensorConfig?: SharedTensorConfig;
}

/** Options of a tensor. */
export interface TensorOptions {
  /** Dimensions, in elements; one dimension by default. */
  readonly shape?: readonly number[];
  /** Without it, the type of the array's numbers. */
  readonly dtype?: DType;
  /** The host by default. */
  readonly device?: Device;
  /** `other` by default. */
  readonly kind?: Kind;
  /** The producer, which is also the holder of the first lease. */
  readonly holder?: string;
  /** The encoder that makes it: the fingerprint of graph, weights and preprocessing, as 64 hexadecimal digits. */
  readonly space?: string;
  /** The hash of the computation that makes it, as 64 hexadecimal digits. Tensors of equal provenance are equal. */
  readonly provenance?: string;
  /** At most 4096 bytes of JSON. */
  readonly metadata?: object;
  /** Keeps the tensor without leases until its memory is needed. */
  readonly cached?: boolean;
  /** Milliseconds that computing a cached tensor again takes. The cheapest tensors for each byte are evicted first. */
  readonly recompute?: number;
}

/** Options of a reservation. */
export interface ReservationOptions extends TensorOptions {
  readonly shape: readonly number[];
  /**
   * No other holder finds the tensor, and its last lease frees it. The budget applies, the configuration of sharing does not.
   */
  readonly private?: boolean;
}

/** A tensor store: keeps tensors on their devices, finds them by name, leases them, and limits their memory. */
export class Store {
  readonly #state: StoreState;

  private constructor(
    state: StoreState,
    /** The tensors that are shared. */
    readonly sharedTensorConfig: SharedTensorConfig,
  ) {
    this.#state = state;
  }

  /** A store of host memory and of the memories in `options`. */
  static async create(options: StoreOptions = {}): Promise<Store> {
    await loadCore();
    const memories = new Map<Device, DeviceMemory>([["cpu", new CpuMemory()]]);
    for (const memory of options.memories ?? []) memories.set(memory.device, memory);
    const { budgets = {}, sharedTensorConfig: config = {} } = options;
    const unknown = Object.keys(budgets).find((device) => !memories.has(device as Device));
    if (unknown !== undefined) {
      throw new CotensorError("Invalid", `budgets: no memory of the store is on ${unknown}; add one to memories`);
    }
    const devices = [...memories.keys()];
    const core = new StoreCore(
      devices,
      Float64Array.from(devices, (device) => budgets[device] ?? Infinity),
      config.enableSharedTensors ?? true,
      config.allowedTypes ? [...config.allowedTypes] : undefined,
      config.maxSharedTensorSize ?? Infinity,
    );
    return new Store(new StoreState(core, memories), config);
  }

  /** Writes the events of all tensors of all stores to the console, or stops doing so. */
  static async setVerboseLogging(verbose: boolean): Promise<void> {
    await loadCore();
    setVerboseLogging(verbose);
  }

  /** Copies `array` into a new tensor and publishes it. The copy is counted. */
  put(name: string, array: ArrayBufferView<ArrayBuffer>, options: TensorOptions = {}): Tensor {
    const dtype = options.dtype ?? dtypeOf(array);
    const length = "length" in array ? (array.length as number) : array.byteLength;
    const reservation = this.reserve(name, { shape: [length], ...options, dtype });
    try {
      reservation.write(array);
      return reservation.publish();
    } finally {
      reservation.dispose();
    }
  }

  /**
   * Publishes memory that exists, without a copy: a typed array, or a storage of a device such as a `GPUBuffer`. The memory
   * then belongs to the store, which frees it. It is as large as the tensor; on a device, rounded up to 16 bytes at most.
   */
  adopt(name: string, memory: object, options: TensorOptions = {}): Tensor {
    return this.reserveAdopted(name, memory, options).publish();
  }

  /** As `adopt`, before publishing. */
  reserveAdopted(name: string, memory: object, options: TensorOptions & { readonly private?: boolean } = {}): Reservation {
    const isArray = ArrayBuffer.isView(memory);
    const device = options.device ?? "cpu";
    const existing = device === "cpu" && isArray ? bytesOf(memory as ArrayBufferView<ArrayBuffer>) : memory;
    const dtype = options.dtype ?? (isArray ? dtypeOf(memory) : "float32");
    if (isArray) checkElements(name, memory, dtype);
    const length = isArray && "length" in memory ? (memory.length as number) : 0;
    return this.#reserve(name, { shape: [length], ...options, device, dtype }, (owner, bytes, layout) => {
      const storage = owner.adopt(existing, layout);
      if (storage === undefined) throw new CotensorError("Invalid", `${name}: this is not memory of ${device}`);
      const size = owner.sizeBytes(storage);
      const max = device === "cpu" ? bytes : Math.ceil(bytes / 16) * 16;
      if (size < bytes || size > max) {
        throw new CotensorError("Invalid", `${name}: the memory has ${size} bytes, the tensor ${bytes}; put() copies`);
      }
      return storage;
    });
  }

  /** Reserves memory for a tensor that the holder writes and then publishes. */
  reserve(name: string, options: ReservationOptions): Reservation {
    return this.#reserve(name, options, (memory, bytes, layout) => {
      try {
        return memory.allocate(bytes, layout);
      } catch (error) {
        if (error instanceof CotensorError) throw error;
        throw new CotensorError("Io", `${name}: ${memory.device} has no room for ${bytes} bytes: ${String(error)}`);
      }
    });
  }

  /** Leases the newest version of `name`, or the one that `version` numbers. */
  get(name: string, holder: string = DEFAULT_HOLDER, version?: number): Tensor {
    const { core } = this.#state;
    const handle = version === undefined ? core.get(name, holder) : core.getVersion(name, version, holder);
    return new Tensor(this.#state, handle, holder, this.#state.segment(core.segment(handle)));
  }

  /** Whether a tensor has this name. */
  has(name: string): boolean {
    return this.#state.core.newestVersion(name) !== undefined;
  }

  /** The names that start with `prefix`, in order. */
  names(prefix = ""): string[] {
    return this.#state.core.names(prefix);
  }

  /** Removes a name. Leases of its tensor stay; the last one frees the memory. */
  remove(name: string): void {
    this.#state.freeing((core) => core.remove(name));
  }

  /** The devices on which it has memory. */
  get devices(): readonly Device[] {
    return [...this.#state.memories.keys()];
  }

  /** The memory of a device. */
  memory(device: Device): DeviceMemory {
    return this.#state.memory(device);
  }

  /**
   * Counts a copy of a tensor's bytes that was made outside the store: by an engine, or before `adopt`, such as the one that
   * brought them from another thread.
   */
  countCopy(name: string, bytes: number, reason: CopyReason = "put"): void {
    this.#state.core.recordCopy(name, reason, bytes);
  }

  /** Sets the most bytes of all tensors on `device`, and evicts unleased tensors until they fit. */
  limitMemory(device: Device, maxBytes: number): void {
    this.#state.freeing((core) => core.limitMemory(device, maxBytes));
  }

  /** Frees all unleased tensors. */
  optimizeMemoryUsage(): OptimizeReport {
    return JSON.parse(this.#state.freeing((core) => core.optimize())) as OptimizeReport;
  }

  /** The counters. */
  getStats(): Stats {
    return JSON.parse(this.#state.core.stats()) as Stats;
  }

  /** Memory that could be saved. */
  getOptimizationRecommendations(): Recommendations {
    return JSON.parse(this.#state.core.recommendations()) as Recommendations;
  }

  /** Every tensor with its holders, and every copy with its reason. */
  getDiagnostics(): Diagnostics {
    const { core, readBacks } = this.#state;
    const known = JSON.parse(core.diagnostics()) as Omit<Diagnostics, "read_backs" | "recent_read_backs">;
    return { ...known, read_backs: readBacks.totals(), recent_read_backs: readBacks.recent() };
  }

  get isDisposed(): boolean {
    return this.#state.isDisposed;
  }

  /** Frees all tensors of the store, leased ones too. A second call does nothing. */
  dispose(): void {
    this.#state.dispose();
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  #reserve(
    name: string,
    options: ReservationOptions,
    storage: (memory: DeviceMemory, bytes: number, layout: Layout) => unknown,
  ): Reservation {
    const { shape, dtype = "float32", device = "cpu", kind = "other", holder = DEFAULT_HOLDER } = options;
    const cached = options.cached ?? options.recompute !== undefined;
    const request = {
      ...{ name, dtype, shape, device, kind, producer: holder },
      space: options.space,
      provenance: options.provenance,
      metadata: options.metadata && JSON.stringify(options.metadata),
      recompute: cached ? (options.recompute ?? 0) : undefined,
      private: options.private ?? false,
    };
    const memory = this.#state.memory(device);
    const handle = this.#state.freeing((core) => core.reserve(request, holder));
    const { core } = this.#state;
    try {
      const made = storage(memory, core.reservedBytes(handle), { dtype, shape });
      const segment = this.#state.add(core.reservedSegment(handle), memory, made);
      return new Reservation(this.#state, handle, name, dtype, holder, segment);
    } catch (error) {
      this.#state.abandon(handle);
      throw error;
    }
  }
}

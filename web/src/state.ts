import type { Description, StoreCore } from "./core.js";
import { CotensorError } from "./errors.js";
import type { DeviceMemory } from "./memory/memory.js";
import { ReadBackCounters } from "./reports.js";
import type { Device } from "./types.js";

/** The storage of one segment. */
export interface Segment {
  readonly memory: DeviceMemory;
  readonly storage: unknown;
  /** The description of the tensor that fills the segment; set when the tensor is published. */
  description: Description | undefined;
}

/** What a store and its tensors share: the module's part, and the storage of each segment. */
export class StoreState {
  readonly #segments = new Map<number, Segment>();
  readonly readBacks = new ReadBackCounters();
  /** Releases tensors that the program dropped without `dispose`. */
  readonly tensors = new FinalizationRegistry<number>((handle) => this.release(handle));
  /** The same for reservations. */
  readonly reservations = new FinalizationRegistry<number>((handle) => this.abandon(handle));
  /** The storages of live segments, so that no storage is in two. */
  readonly #owned = new Set<unknown>();
  #core: StoreCore | undefined;

  constructor(
    core: StoreCore,
    readonly memories: ReadonlyMap<Device, DeviceMemory>,
  ) {
    this.#core = core;
  }

  get core(): StoreCore {
    if (this.#core === undefined) throw new CotensorError("Conflict", "the store was disposed; create another one");
    return this.#core;
  }

  get isDisposed(): boolean {
    return this.#core === undefined;
  }

  /** The memory of `device`. */
  memory(device: Device): DeviceMemory {
    const memory = this.memories.get(device);
    if (memory) return memory;
    const known = [...this.memories.keys()].join(", ");
    throw new CotensorError("Unsupported", `device: this store has no memory on ${device}; it has ${known}`);
  }

  /** Adds the storage of a reserved segment. */
  add(number: number, memory: DeviceMemory, storage: unknown): Segment {
    if (this.#owned.has(storage)) throw new CotensorError("Conflict", "the memory belongs to a tensor of this store already");
    this.#owned.add(storage);
    const segment = { memory, storage, description: undefined };
    this.#segments.set(number, segment);
    return segment;
  }

  /** The segment of that number. */
  segment(number: number): Segment {
    const segment = this.#segments.get(number);
    if (!segment) throw new CotensorError("Conflict", "the memory of the tensor was freed");
    return segment;
  }

  /** Calls a method of the module that may free segments, and then frees their storages. */
  freeing<Result>(call: (core: StoreCore) => Result): Result {
    try {
      return call(this.core);
    } finally {
      this.free(this.core.takeFreed());
    }
  }

  /** Releases a tensor's lease. Nothing happens once the store is disposed. */
  release(handle: number): void {
    if (this.#core?.release(handle)) this.free(this.#core.takeFreed());
  }

  /** Gives a reservation back. Nothing happens once the store is disposed. */
  abandon(handle: number): void {
    if (this.#core) this.freeing((core) => core.abandon(handle));
  }

  /** Frees everything. */
  dispose(): void {
    const core = this.#core;
    this.#core = undefined;
    core?.free();
    this.free([...this.#segments.keys()]);
  }

  /** Frees the storages of all these segments, also if a memory throws. */
  private free(numbers: Iterable<number>): void {
    const errors: unknown[] = [];
    for (const number of numbers) {
      const segment = this.#segments.get(number);
      // A reservation that found no memory.
      if (!segment) continue;
      this.#segments.delete(number);
      this.#owned.delete(segment.storage);
      try {
        segment.memory.free(segment.storage);
      } catch (error) {
        errors.push(error);
      }
    }
    if (errors.length > 0) throw errors[0];
  }
}

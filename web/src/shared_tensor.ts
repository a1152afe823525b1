import { CotensorError } from "./errors.js";
import { mergedDiagnostics, type Diagnostics } from "./reports.js";
import type { Reservation } from "./reservation.js";
import { DEFAULT_HOLDER, Store } from "./store.js";
import type { Tensor } from "./tensor.js";
import type { Device, DType, Kind, TypedArray } from "./types.js";

/** What a shared tensor is, beside its name and shape. */
export interface SharedTensorOptions {
  /** `float32` by default. */
  readonly dtype?: DType;
  /** The host by default. */
  readonly storageType?: Device;
  readonly producerModel: string;
  readonly kind?: Kind;
  /** Keeps the tensor without holders until its memory is needed, so that a model can acquire it again. */
  readonly cached?: boolean;
}

/** The stores that have had shared tensors, for the diagnostics of all of them. */
const stores = new WeakSet<Store>();
const references = new Set<WeakRef<Store>>();

/**
 * A tensor that models acquire and release by name.
 *
 * Its producer writes it until another model first acquires it, which publishes it for good. Counts are per model: two acquires
 * need two releases. The last release frees the tensor.
 */
export class SharedTensor {
  readonly #producer: string;
  readonly #shape: readonly number[];
  /** The producer's acquires before publishing. */
  #acquires = 1;
  #reservation: Reservation | undefined;
  readonly #leases = new Map<string, Tensor[]>();
  readonly #store: Store;
  /** Of a cached tensor, once it is published. */
  #version: number | undefined;
  readonly #cached: boolean;
  readonly name: string;
  readonly kind: Kind;
  /** The encoder that made it, as 64 hexadecimal digits. */
  readonly space: string | undefined;

  /** A zeroed tensor of `store`, acquired once by its producer. `shape` is in elements. */
  constructor(store: Store, name: string, shape: readonly number[], options: SharedTensorOptions);
  /** A tensor of `store` that is published. Its lease becomes the first one of the lease's holder. */
  constructor(store: Store, published: Tensor);
  constructor(store: Store, from: string | Tensor, shape: readonly number[] = [], options?: SharedTensorOptions) {
    if (typeof from === "string") {
      const { dtype = "float32", storageType = "cpu", producerModel = DEFAULT_HOLDER, kind = "other", cached = false } = options ?? {};
      this.#cached = cached;
      this.name = from;
      this.kind = kind;
      this.#producer = producerModel;
      this.#shape = [...shape];
      this.#reservation = store.reserve(from, { shape, dtype, device: storageType, holder: producerModel, kind, cached });
    } else {
      this.#cached = false;
      this.name = from.name;
      this.kind = from.kind;
      this.space = from.space;
      this.#producer = from.holder;
      this.#shape = [...from.shape];
      this.#add(from.holder, from);
    }
    this.#store = store;
    if (!stores.has(store)) {
      stores.add(store);
      references.add(new WeakRef(store));
    }
  }

  /** Writes the events of all tensors to the console, or stops doing so. */
  static setVerboseLogging(verbose: boolean): Promise<void> {
    return Store.setVerboseLogging(verbose);
  }

  /** The tensors and copies of all stores that have shared tensors. */
  static getDiagnostics(): Diagnostics {
    const live: Store[] = [];
    for (const reference of references) {
      const store = reference.deref();
      if (store && !store.isDisposed) live.push(store);
      else references.delete(reference);
    }
    return mergedDiagnostics(live.map((store) => store.getDiagnostics()));
  }

  /** The tensor's dimensions, in elements. */
  get tensor(): { readonly dimensions: readonly number[] } {
    return { dimensions: this.#shape };
  }

  get isPublished(): boolean {
    return this.#leases.size > 0;
  }

  /** The name of the device that holds it. */
  get device(): Device {
    return (this.#reservation ?? this.lease()).device;
  }

  /** Bytes of the elements. */
  get byteLength(): number {
    return (this.#reservation ?? this.lease()).byteLength;
  }

  get isFreed(): boolean {
    return this.#reservation === undefined && this.#leases.size === 0 && !(this.#cached && this.#store.has(this.name));
  }

  /** The number of acquires of each model. */
  get holders(): Record<string, number> {
    if (this.#reservation) return { [this.#producer]: this.#acquires };
    return Object.fromEntries([...this.#leases].map(([model, leases]) => [model, leases.length]));
  }

  /** The number of acquires that were not released. */
  getReferenceCount(): number {
    return Object.values(this.holders).reduce((total, each) => total + each, 0);
  }

  /** Copies `array` into the tensor, before publishing. */
  write(array: ArrayBufferView<ArrayBuffer>): void {
    this.#writable().write(array);
  }

  /** The elements in host memory, without a copy. The producer writes to them before publishing. */
  array(): TypedArray {
    return this.#reservation ? this.#reservation.array() : this.lease().array();
  }

  /** Acquires the tensor once more for `model`. The first acquire by a model other than the producer publishes it. */
  acquire(model: string): void {
    if (this.#reservation && model === this.#producer) {
      this.#acquires += 1;
      return;
    }
    this.#publish();
    this.#add(model, this.#kept(model) ?? this.lease().sameFor(model));
  }

  /** Releases one acquire of `model`. */
  release(model: string): void {
    if (this.#reservation && model === this.#producer) {
      if (this.#acquires > 1) {
        this.#acquires -= 1;
        return;
      }
      if (!this.#cached) {
        this.#reservation.dispose();
        this.#reservation = undefined;
        return;
      }
      this.#publish();
    }
    const leases = this.#leases.get(model);
    const lease = leases?.pop();
    if (!lease) throw new CotensorError("Conflict", `${this.name} is not held by ${JSON.stringify(model)}`);
    if (leases?.length === 0) this.#leases.delete(model);
    lease.dispose();
  }

  /** A view of `size` elements from `offset` on along each dimension, which publishes the tensor. The view is a lease. */
  createView(offset: readonly number[], size: readonly number[]): Tensor {
    this.#publish();
    return this.lease().view(offset, size);
  }

  /** A lease of a cached tensor that has no holder. */
  #kept(model: string): Tensor | undefined {
    return this.#cached && this.#leases.size === 0 ? this.#store.get(this.name, model, this.#version) : undefined;
  }

  /** A lease of any model, which stays that model's. */
  lease(): Tensor {
    for (const leases of this.#leases.values()) {
      if (leases[0]) return leases[0];
    }
    throw new CotensorError("NotFound", `${this.name} was freed; create it again`);
  }

  #publish(): void {
    if (!this.#reservation) return;
    const first = this.#reservation.publish();
    this.#reservation = undefined;
    this.#version = first.version;
    this.#add(this.#producer, first);
    for (let more = 1; more < this.#acquires; more += 1) this.#add(this.#producer, first.leaseFor(this.#producer));
  }

  #add(model: string, lease: Tensor): void {
    const leases = this.#leases.get(model);
    if (leases) leases.push(lease);
    else this.#leases.set(model, [lease]);
  }

  #writable(): Reservation {
    if (this.#reservation) return this.#reservation;
    if (this.isFreed) throw new CotensorError("NotFound", `${this.name} was freed; create it again`);
    throw new CotensorError("Conflict", `${this.name} is published: it is immutable`);
  }
}

import type { Description } from "./core.js";
import { CotensorError } from "./errors.js";
import { checkReason } from "./reports.js";
import type { Segment, StoreState } from "./state.js";
import { gathered } from "./strided.js";
import { elements, type Device, type DType, type Kind, type TypedArray } from "./types.js";

/**
 * A lease on a tensor, or on a view of one. The tensor stays while the lease exists.
 *
 * `dispose` releases the lease. The garbage collector releases it too, but later, and it does not know how much memory of a
 * device that frees.
 */
export class Tensor {
  readonly #state: StoreState;
  readonly #segment: Segment;
  #description: Description | undefined;
  /** Negative once it is disposed. */
  #handle: number;
  /** The name of the lease's holder. */
  readonly holder: string;

  /** Stores make tensors. */
  constructor(state: StoreState, handle: number, holder: string, segment: Segment, description?: Description) {
    this.#state = state;
    this.#handle = handle;
    this.#segment = segment;
    this.#description = description;
    this.holder = holder;
    state.tensors.register(this, handle, this);
  }

  get name(): string {
    return this.#layout.name;
  }

  /** The number of this publication of the name, from 1. */
  get version(): number {
    return this.#layout.version;
  }

  get dtype(): DType {
    return this.#layout.dtype;
  }

  /** Dimensions, in elements. */
  get shape(): readonly number[] {
    return this.#layout.shape;
  }

  /** The distance between neighbours along each dimension, in elements. */
  get strides(): readonly number[] {
    return this.#layout.strides;
  }

  get kind(): Kind {
    return this.#layout.kind;
  }

  /** The name of the producer. */
  get producer(): string {
    return this.#layout.producer;
  }

  /** The encoder that made it, as 64 hexadecimal digits. */
  get space(): string | undefined {
    return this.#layout.space ?? undefined;
  }

  /** The hash of the computation that made it, as 64 hexadecimal digits. */
  get provenance(): string | undefined {
    return this.#layout.provenance ?? undefined;
  }

  /** What the producer wants readers to know. */
  get metadata(): unknown {
    const text = this.#layout.metadata;
    return text === null ? undefined : JSON.parse(text);
  }

  get device(): Device {
    return this.#segment.memory.device;
  }

  /** Bytes of the elements. */
  get byteLength(): number {
    return this.shape.reduce((total, each) => total * each, this.#layout.element_bytes);
  }

  /** Whether the elements are row-major without gaps. */
  get isContiguous(): boolean {
    return this.#layout.contiguous;
  }

  /** Whether this is all of a published tensor, and not a part of it. */
  get isWhole(): boolean {
    const [part, whole] = [this.#layout, this.#segment.description ?? this.#layout];
    const isSame = part.offset_bytes === whole.offset_bytes && part.span_bytes === whole.span_bytes && part.contiguous;
    return part === whole || (isSame && part.shape.join() === whole.shape.join());
  }

  get isDisposed(): boolean {
    return this.#handle < 0 || this.#state.isDisposed;
  }

  /** The number of leases of each holder, views included. */
  get holders(): Record<string, number> {
    return JSON.parse(this.#state.core.holders(this.#live())) as Record<string, number>;
  }

  /** The number of leases of all holders. */
  get referenceCount(): number {
    return Object.values(this.holders).reduce((total, each) => total + each, 0);
  }

  /** The elements in host memory, without a copy. The tensor is immutable: do not write to them. */
  array(): TypedArray {
    this.#live();
    const { name, dtype, contiguous } = this.#layout;
    if (this.device !== "cpu") {
      throw new CotensorError("Unsupported", `${name}: the host cannot address ${this.device} memory; await read(reason) copies it`);
    }
    if (!contiguous) {
      throw new CotensorError("Invalid", `${name}: the elements have gaps; await read(reason) copies them`);
    }
    const bytes = this.#segment.storage as Uint8Array<ArrayBuffer>;
    return elements(dtype, bytes.subarray(this.#layout.offset_bytes, this.#layout.offset_bytes + this.#layout.span_bytes));
  }

  /**
   * The tensor's storage as `createBindGroup` takes it: a `GPUBufferBinding`. A view whose offset is not a multiple of the device's
   * `minStorageBufferOffsetAlignment` (mostly 256 bytes) is refused. The storage belongs to the store: do not destroy it.
   */
  binding<Storage = GPUBuffer>(): { buffer: Storage; offset: number; size: number } {
    const place = this.location<Storage>();
    const { memory, storage } = this.#segment;
    const way = "copy it from location() to a buffer of its own, or read(reason) its elements";
    const alignment = memory.bindingAlignment ?? 1;
    if (place.offset % alignment !== 0) {
      throw new CotensorError("Unsupported", `${this.name}: the view begins at byte ${place.offset} of its buffer; ${this.device} binds multiples of ${alignment}: ${way}`);
    }
    const length = memory.sizeBytes(storage);
    if (place.offset + place.size > length) {
      throw new CotensorError("Unsupported", `${this.name}: the buffer has ${length} bytes; ${this.device} binds multiples of 4: ${way}`);
    }
    return place;
  }

  /**
   * The tensor's storage, such as a `GPUBuffer`, which may hold more than this view: it starts at `offset` and has `size`
   * bytes, for a `GPUBuffer` rounded up to the four bytes that WebGPU requires. Any view can be copied from there. The storage
   * belongs to the store: do not destroy it.
   */
  location<Storage = GPUBuffer>(): { buffer: Storage; offset: number; size: number } {
    this.#live();
    return {
      buffer: this.#segment.storage as Storage,
      offset: this.#layout.offset_bytes,
      size: this.device === "webgpu" ? Math.ceil(this.#layout.span_bytes / 4) * 4 : this.#layout.span_bytes,
    };
  }

  /**
   * A copy of the elements in host memory, row-major. The copy is counted; `diagnostics()` shows `reason` for a tensor of
   * another device.
   */
  async read(reason: string): Promise<TypedArray> {
    checkReason(reason);
    this.#live();
    const layout = this.#layout;
    const { memory, storage } = this.#segment;
    const state = this.#state;
    const span = await memory.read(storage, layout.offset_bytes, layout.span_bytes);
    if (!state.isDisposed) {
      const onHost = memory.device === "cpu";
      state.core.recordCopy(layout.name, onHost ? "private copy" : "device transfer", span.byteLength);
      if (!onHost) state.readBacks.record(layout.name, reason, span.byteLength);
    }
    return elements(layout.dtype, layout.contiguous ? span : gathered(span, layout));
  }

  /**
   * A view of `size` elements from `offset` on along each dimension, every `step`-th of them. No byte is copied. The view is
   * one more lease of the same holder.
   */
  view(offset: readonly number[], size: readonly number[], step: readonly number[] = offset.map(() => 1)): Tensor {
    const { core } = this.#state;
    const handle = core.view(this.#live(), numbers(offset), numbers(size), numbers(step));
    const description = JSON.parse(core.describe(handle)) as Description;
    return new Tensor(this.#state, handle, this.holder, this.#segment, description);
  }

  /** A lease of the whole tensor for another holder. */
  leaseFor(holder: string): Tensor {
    const handle = this.#state.core.leaseFor(this.#live(), holder);
    return new Tensor(this.#state, handle, holder, this.#segment);
  }

  /** A lease of the same elements for another holder: of a view, a view. */
  sameFor(holder: string): Tensor {
    const handle = this.#state.core.sameFor(this.#live(), holder);
    return new Tensor(this.#state, handle, holder, this.#segment, this.#description);
  }

  /** Releases the lease. A second call does nothing. */
  dispose(): void {
    if (this.#handle < 0) return;
    const handle = this.#handle;
    // The name stays for errors.
    this.#description ??= this.#segment.description;
    this.#handle = -1;
    this.#state.tensors.unregister(this);
    this.#state.release(handle);
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  get #layout(): Description {
    const description = this.#description ?? this.#segment.description;
    if (!description) throw new CotensorError("Conflict", "the tensor is not published");
    return description;
  }

  /** The handle. */
  #live(): number {
    if (this.#handle < 0) {
      throw new CotensorError("Conflict", `${this.#layout.name}: this lease was disposed; get the tensor again`);
    }
    void this.#state.core;
    return this.#handle;
  }
}

function numbers(values: readonly number[]): Float64Array {
  return Float64Array.from(values);
}

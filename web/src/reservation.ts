import type { Description } from "./core.js";
import { CotensorError } from "./errors.js";
import type { Segment, StoreState } from "./state.js";
import { Tensor } from "./tensor.js";
import { bytesOf, checkElements, elements, type Device, type DType, type TypedArray } from "./types.js";

/** Memory of a tensor that its producer writes. No other holder sees it until `publish`. */
export class Reservation {
  readonly #state: StoreState;
  readonly #segment: Segment;
  readonly #bytes: number;
  #open = true;

  /** Stores make reservations. */
  constructor(
    state: StoreState,
    private readonly handle: number,
    readonly name: string,
    readonly dtype: DType,
    readonly holder: string,
    segment: Segment,
  ) {
    this.#state = state;
    this.#segment = segment;
    this.#bytes = state.core.reservedBytes(handle);
    state.reservations.register(this, handle, this);
  }

  get device(): Device {
    return this.#segment.memory.device;
  }

  /** Bytes of the elements. */
  get byteLength(): number {
    return this.#bytes;
  }

  /** The elements in host memory, for writing in place. */
  array(): TypedArray {
    this.#check();
    if (this.device !== "cpu") {
      const way = "write(array) copies, and storage() is what the device's programs write";
      throw new CotensorError("Unsupported", `${this.name}: the host cannot address ${this.device} memory; ${way}`);
    }
    return elements(this.dtype, (this.#segment.storage as Uint8Array<ArrayBuffer>).subarray(0, this.#bytes));
  }

  /** The memory, such as a `GPUBuffer` to which a program of the device writes. */
  storage<Storage = GPUBuffer>(): Storage {
    this.#check();
    return this.#segment.storage as Storage;
  }

  /** Copies `array`, which has the bytes of all elements. The copy is counted. */
  write(array: ArrayBufferView<ArrayBuffer>): void {
    this.#check();
    checkElements(this.name, array, this.dtype);
    const bytes = bytesOf(array);
    if (bytes.byteLength !== this.#bytes) {
      throw new CotensorError("Invalid", `${this.name}: the array has ${bytes.byteLength} bytes, the tensor ${this.#bytes}`);
    }
    const { memory, storage } = this.#segment;
    memory.write(storage, bytes);
    this.#state.core.recordCopy(this.name, memory.device === "cpu" ? "put" : "device transfer", bytes.byteLength);
  }

  /** Sets the milliseconds that computing a cached tensor again takes. */
  setRecompute(milliseconds: number): void {
    this.#check();
    this.#state.core.setRecompute(this.handle, milliseconds);
  }

  /** Publishes the tensor under its name, and leases it to the holder. Nobody writes it from now on. */
  publish(): Tensor {
    this.#check();
    this.#close();
    const handle = this.#state.freeing((core) => core.publish(this.handle));
    this.#segment.description = JSON.parse(this.#state.core.describe(handle)) as Description;
    return new Tensor(this.#state, handle, this.holder, this.#segment);
  }

  /** Gives the memory back, unless the tensor is published. */
  dispose(): void {
    if (!this.#open) return;
    this.#close();
    this.#state.abandon(this.handle);
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  #close(): void {
    this.#open = false;
    this.#state.reservations.unregister(this);
  }

  #check(): void {
    if (!this.#open) {
      throw new CotensorError("Conflict", `${this.name}: this reservation was published or disposed; reserve another one`);
    }
  }
}

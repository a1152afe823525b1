import { CotensorError } from "../errors.js";
import type { DType } from "../types.js";
import type { DeviceMemory, Layout } from "./memory.js";

// TypeScript's library lacks the types of WebNN. These are the parts that the package uses.

/** A tensor of WebNN. */
export interface MLTensor {
  readonly dataType: string;
  readonly shape: readonly number[];
  destroy(): void;
}

/** A device of WebNN. */
export interface MLContext {
  readonly lost: Promise<{ readonly message: string }>;
  createTensor(descriptor: { dataType: string; shape: number[]; readable: boolean; writable: boolean }): Promise<MLTensor>;
  writeTensor(tensor: MLTensor, bytes: Uint8Array<ArrayBuffer>): void;
  readTensor(tensor: MLTensor): Promise<ArrayBuffer>;
}

/** WebNN's name of each element type that it has. */
const DATA_TYPES: Partial<Record<DType, string>> = {
  ...{ bool: "uint8", uint8: "uint8", int8: "int8", uint32: "uint32", int32: "int32" },
  ...{ uint64: "uint64", int64: "int64", float16: "float16", float32: "float32" },
};

/** An `MLTensor`, which WebNN makes asynchronously. */
export class MlStorage {
  /** The tensor. Rejects if WebNN has no memory for it. */
  readonly ready: Promise<MLTensor>;
  /** The tensor, once it is there. */
  tensor: MLTensor | undefined;

  constructor(
    made: MLTensor | Promise<MLTensor>,
    /** Bytes of the elements. */
    readonly byteLength: number,
  ) {
    if (made instanceof Promise) this.ready = made.then((tensor) => (this.tensor = tensor));
    else this.ready = Promise.resolve((this.tensor = made));
    // The next use reports the error.
    this.ready.catch(() => undefined);
  }
}

/**
 * The memory of an `MLContext`: an `MLTensor` for each tensor. A part of an `MLTensor` cannot be an input: engines copy a view
 * through the host, and count that.
 */
export class WebnnMemory implements DeviceMemory<MlStorage> {
  readonly device = "webnn";
  readonly #adopted = new WeakMap<object, MlStorage>();
  /** Writes that WebNN refused after they were asked for. */
  readonly #failed = new WeakMap<MlStorage, string>();
  readonly lost: Promise<string>;
  #lost: string | undefined;

  /** The program owns `context`. */
  constructor(readonly context: MLContext) {
    this.lost = context.lost.then((info) => (this.#lost = info.message || "no reason given"));
  }

  allocate(bytes: number, layout: Layout): MlStorage {
    this.#check();
    const descriptor = { dataType: dataType(layout), shape: [...layout.shape], readable: true, writable: true };
    const made = this.context.createTensor(descriptor).catch((error: unknown) => {
      this.#check();
      throw new CotensorError("Io", `WebNN made no ${descriptor.dataType} tensor of shape [${descriptor.shape.join(", ")}]: ${String(error)}`);
    });
    return new MlStorage(made, bytes);
  }

  adopt(value: unknown, layout: Layout): MlStorage | undefined {
    if (value instanceof MlStorage) return value;
    const { MLTensor: TensorClass } = globalThis as { MLTensor?: new () => MLTensor };
    if (!TensorClass || !(value instanceof TensorClass)) return undefined;
    const [has, wanted] = [`${value.dataType} [${value.shape.join(", ")}]`, `${dataType(layout)} [${layout.shape.join(", ")}]`];
    if (has !== wanted) throw new CotensorError("Invalid", `the MLTensor is ${has}, the tensor ${wanted}`);
    // The same MLTensor is the same storage, which a store has once.
    const storage = this.#adopted.get(value) ?? new MlStorage(value, bytesOf(value));
    this.#adopted.set(value, storage);
    return storage;
  }

  sizeBytes(storage: MlStorage): number {
    return storage.byteLength;
  }

  write(storage: MlStorage, bytes: Uint8Array<ArrayBuffer>): void {
    this.#check();
    if (storage.tensor) {
      this.context.writeTensor(storage.tensor, bytes);
      return;
    }
    const copy = bytes.slice();
    const write = (tensor: MLTensor): void => {
      try {
        this.context.writeTensor(tensor, copy);
      } catch (error) {
        this.#failed.set(storage, String(error));
      }
    };
    storage.ready.then(write, () => undefined);
  }

  /** WebNN reads whole tensors: a part costs as much as the tensor. */
  async read(storage: MlStorage, offset: number, size: number): Promise<Uint8Array<ArrayBuffer>> {
    this.#check();
    const tensor = await storage.ready;
    const failed = this.#failed.get(storage);
    if (failed !== undefined) throw new CotensorError("Io", `WebNN did not write the tensor: ${failed}`);
    try {
      return new Uint8Array(await this.context.readTensor(tensor)).slice(offset, offset + size);
    } catch (error) {
      this.#check();
      throw new CotensorError("Io", `WebNN did not copy the tensor to the host: ${String(error)}`);
    }
  }

  free(storage: MlStorage): void {
    storage.ready.then(
      (tensor) => tensor.destroy(),
      () => undefined,
    );
  }

  #check(): void {
    if (this.#lost !== undefined) {
      throw new CotensorError("Io", `the WebNN context was lost (${this.#lost}); create a store with a new MLContext`);
    }
  }
}

function dataType({ dtype }: Layout): string {
  const name = DATA_TYPES[dtype];
  if (name === undefined) {
    throw new CotensorError("Unsupported", `dtype: WebNN has no ${dtype}; it has ${Object.keys(DATA_TYPES).join(", ")}`);
  }
  return name;
}

function bytesOf({ dataType: name, shape }: MLTensor): number {
  const bits = Number(/\d+$/.exec(name)?.[0] ?? 8);
  return Math.ceil((shape.reduce((total, each) => total * each, 1) * bits) / 8);
}

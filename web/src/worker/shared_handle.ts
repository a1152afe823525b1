import { CotensorError } from "../errors.js";
import type { Device, DType, Kind, TypedArray } from "../types.js";
import type { Connection } from "./connection.js";
import type { TensorAnswer } from "./store_handlers.js";

/**
 * A lease of a tensor that is in the hub: on the host there, or on a device. `dispose` releases it; so does the garbage collector
 * later, and the end of the page.
 */
export class SharedHandle {
  readonly #connection: Connection;
  readonly #handle: number;
  #isDisposed = false;

  readonly name: string;
  /** The number of this publication of the name, from 1. */
  readonly version: number;
  readonly dtype: DType;
  /** Dimensions, in elements. */
  readonly shape: readonly number[];
  readonly kind: Kind;
  readonly device: Device;
  readonly producer: string;
  readonly metadata: unknown;
  /** The name of the lease's holder, which starts with the client's. */
  readonly holder: string;

  /** Shared stores make handles. */
  constructor(connection: Connection, answer: TensorAnswer) {
    this.#connection = connection;
    this.#handle = answer.handle;
    this.name = answer.name;
    this.version = answer.version;
    this.dtype = answer.dtype;
    this.shape = answer.shape;
    this.kind = answer.kind;
    this.device = answer.device;
    this.producer = answer.producer;
    this.metadata = answer.metadata;
    this.holder = answer.holder;
    connection.register(this, answer.handle);
  }

  /** The hub's number of this lease, for methods of models that take tensors. */
  get handle(): number {
    if (this.#isDisposed) throw new CotensorError("Conflict", `${this.name}: this lease was disposed; get the tensor again`);
    return this.#handle;
  }

  get isDisposed(): boolean {
    return this.#isDisposed || this.#connection.isClosed;
  }

  /** A copy of the elements, row-major, which the hub makes and then transfers. It is counted with `reason`. */
  async read(reason: string): Promise<TypedArray> {
    return this.#connection.call("tensor.read", { handle: this.handle, reason });
  }

  /** The number of leases of each holder, views included. */
  async holders(): Promise<Record<string, number>> {
    return this.#connection.call("tensor.holders", { handle: this.handle });
  }

  /** The number of leases of all holders. */
  async referenceCount(): Promise<number> {
    return Object.values(await this.holders()).reduce((total, each) => total + each, 0);
  }

  /** A view of `size` elements from `offset` on along each dimension, every `step`-th of them. It is a lease; nothing is copied. */
  async view(offset: readonly number[], size: readonly number[], step?: readonly number[]): Promise<SharedHandle> {
    return this.#lease("tensor.view", { offset, size, step });
  }

  /** A lease of the whole tensor for another part of this client. */
  async leaseFor(holder: string): Promise<SharedHandle> {
    return this.#lease("tensor.leaseFor", { holder });
  }

  /** Releases the lease. A second call does nothing. */
  dispose(): void {
    if (this.#isDisposed) return;
    this.#isDisposed = true;
    this.#connection.release(this, this.#handle);
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  async #lease(method: string, params: object): Promise<SharedHandle> {
    const answer = await this.#connection.call<TensorAnswer>(method, { handle: this.handle, ...params });
    return new SharedHandle(this.#connection, answer);
  }
}

import type { Diagnostics, OptimizeReport, Recommendations, Stats } from "../reports.js";
import type { TensorOptions } from "../store.js";
import { checkElements, dtypeOf, type Device } from "../types.js";
import type { Connection } from "./connection.js";
import { SharedHandle } from "./shared_handle.js";
import type { TensorAnswer } from "./store_handlers.js";

/** Options of `SharedStore.put`. */
export interface SharedPutOptions extends TensorOptions {
  /** Gives the array's whole buffer to the store, without a copy. The array is empty afterwards. */
  readonly transfer?: boolean;
}

/** The store of the hub, used from a page. All tabs of the site see the same names. */
export class SharedStore {
  constructor(
    /** The session. Models of the hub are called through it. */
    readonly connection: Connection,
    /** The ways to connect that failed before, each with its reason. */
    readonly fallbackReasons: readonly string[],
  ) {}

  /** Resolves with the reason when the session ends. Its tensors are released then; connect again for another session. */
  get closed(): Promise<Error> {
    return this.connection.closed;
  }

  /**
   * Publishes the elements of `array`. They are copied once, which is counted, or given with `transfer`. The name of the holder
   * is this client's, a slash, and `holder`.
   */
  async put(name: string, array: ArrayBufferView<ArrayBuffer>, options: SharedPutOptions = {}): Promise<SharedHandle> {
    const { transfer = false, holder, dtype = dtypeOf(array), ...rest } = options;
    checkElements(name, array, dtype);
    const isWhole = array.byteLength === array.buffer.byteLength;
    const given = transfer && isWhole;
    const bytes = given ? array.buffer : array.buffer.slice(array.byteOffset, array.byteOffset + array.byteLength);
    const length = "length" in array ? (array.length as number) : array.byteLength;
    const params = { name, bytes, copied: !given, holder, options: { shape: [length], dtype, ...rest } };
    return this.adopt(await this.connection.call<TensorAnswer>("tensor.put", params, [bytes]));
  }

  /** Leases the newest version of `name`, or the one that `version` numbers. */
  async get(name: string, holder?: string, version?: number): Promise<SharedHandle> {
    return this.adopt(await this.connection.call<TensorAnswer>("tensor.get", { name, holder, version }));
  }

  /** The handle of a lease that a method of the hub gave to this client. */
  adopt(answer: TensorAnswer): SharedHandle {
    return new SharedHandle(this.connection, answer);
  }

  /** Whether a tensor has this name. */
  has(name: string): Promise<boolean> {
    return this.connection.call("store.has", { name });
  }

  /** The names that start with `prefix`, in order. */
  names(prefix = ""): Promise<string[]> {
    return this.connection.call("store.names", { prefix });
  }

  /** Removes a name. Leases of its tensor stay; the last one frees the memory. */
  remove(name: string): Promise<void> {
    return this.connection.call("store.remove", { name });
  }

  /** Sets the most bytes of all tensors on `device`, and evicts unleased tensors until they fit. */
  limitMemory(device: Device, maxBytes: number): Promise<void> {
    return this.connection.call("store.limitMemory", { device, maxBytes });
  }

  /** Frees all unleased tensors. */
  optimizeMemoryUsage(): Promise<OptimizeReport> {
    return this.connection.call("store.optimize", {});
  }

  /** The counters. */
  getStats(): Promise<Stats> {
    return this.connection.call("store.stats", {});
  }

  /** Memory that could be saved. */
  getOptimizationRecommendations(): Promise<Recommendations> {
    return this.connection.call("store.recommendations", {});
  }

  /** Every tensor with its holders, and every copy with its reason. */
  getDiagnostics(): Promise<Diagnostics> {
    return this.connection.call("store.diagnostics", {});
  }

  /** Ends the session: all leases of this client are released. A second call does nothing. */
  close(): Promise<void> {
    return this.connection.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

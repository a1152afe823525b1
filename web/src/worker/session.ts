import { CotensorError } from "../errors.js";
import { OUTSTANDING_MAX } from "./messages.js";

/** Something that ends with its session: a lease, a reservation, a model. */
export interface Owned {
  dispose(): void | Promise<void>;
}

/** The most objects of one session. */
const OWNED_MAX = 100_000;

/** One client of the worker, and everything that it holds. Clients name objects by integers, which are never used again. */
export class Session {
  readonly #owned = new Map<number, Owned>();
  readonly #abort = new AbortController();
  /** Calls that the client may cancel, by the client's numbers. */
  readonly #calls = new Map<unknown, AbortController>();
  /** Numbers that the client cancelled while their calls did not run yet, or no more. Clients never use a number again. */
  readonly #cancelled = new Set<unknown>();
  #next = 1;

  constructor(
    /** The client's name; its leases have it. */
    readonly holder: string,
  ) {}

  /** Aborted when the session ends. Long handlers watch it. */
  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  get size(): number {
    return this.#owned.size;
  }

  /**
   * Keeps an object until the client releases it or the session ends, and returns the client's number for it. If the session
   * ended while the object was made, it is disposed at once.
   */
  own(object: Owned): number {
    const ended = this.signal.aborted;
    if (ended || this.#owned.size >= OWNED_MAX) {
      dispose(object);
      if (ended) throw new CotensorError("Unreachable", "the client has ended");
      throw new CotensorError("Refused", `a client has at most ${OWNED_MAX} tensors and models; dispose some of them`);
    }
    const handle = this.#next;
    this.#next += 1;
    this.#owned.set(handle, object);
    return handle;
  }

  /** The object of that number, which is an instance of `Class`. */
  find<Kind extends object>(handle: unknown, Class: abstract new (...parameters: never[]) => Kind): Kind {
    const object = this.#owned.get(handle as number);
    if (object instanceof Class) return object;
    throw new CotensorError("Conflict", `handle ${String(handle)}: this client has no such ${Class.name}; it was disposed`);
  }

  /** Disposes the object of that number. Nothing happens without one. */
  release(handle: unknown): void {
    const object = this.#owned.get(handle as number);
    this.#owned.delete(handle as number);
    if (object) dispose(object);
  }

  /** Runs a call that ends with the session, or when the client cancels its number `call`. */
  async cancellable<Value>(call: unknown, work: (signal: AbortSignal) => Promise<Value>): Promise<Value> {
    if (call === undefined) return work(this.signal);
    if (!Number.isSafeInteger(call) || this.#calls.has(call)) throw new CotensorError("Invalid", "call: an integer that no running call has is required");
    const abort = new AbortController();
    const end = (): void => abort.abort(this.signal.reason);
    this.#calls.set(call, abort);
    this.signal.addEventListener("abort", end);
    if (this.signal.aborted) end();
    if (this.#cancelled.delete(call)) abort.abort();
    try {
      abort.signal.throwIfAborted();
      return await work(abort.signal);
    } finally {
      this.signal.removeEventListener("abort", end);
      this.#calls.delete(call);
    }
  }

  /** Cancels a call, also one that the client made but that does not run yet. Nothing happens once it has ended. */
  cancel(call: unknown): void {
    const running = this.#calls.get(call);
    if (running) return running.abort();
    if (!Number.isSafeInteger(call)) return;
    this.#cancelled.add(call);
    // At most so many calls wait to run. The oldest number is that of a call that has ended.
    const [oldest] = this.#cancelled;
    if (this.#cancelled.size > OUTSTANDING_MAX) this.#cancelled.delete(oldest);
  }

  /** Disposes all objects, the newest first: models use tensors that are older. A second call does nothing. */
  end(): void {
    if (this.signal.aborted) return;
    this.#abort.abort(new CotensorError("Unreachable", "the session ended"));
    const all = [...this.#owned.values()].reverse();
    this.#owned.clear();
    for (const object of all) dispose(object);
  }

  /** The name of a lease's holder: the client's, and the part of the client that the lease is for. */
  holderName(part: string | undefined): string {
    return part === undefined ? this.holder : `${this.holder}/${part}`;
  }
}

/** No caller awaits this end, so its errors go to the console. */
function dispose(object: Owned): void {
  const report = (error: unknown): void => console.error("cotensor: an object of a client could not be disposed:", error);
  try {
    object.dispose()?.catch(report);
  } catch (error) {
    report(error);
  }
}

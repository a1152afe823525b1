import { CotensorError } from "../errors.js";
import { holdLock, whenFree, type Locks } from "../locks.js";
import type { Device } from "../types.js";
import { VERSION } from "../version.js";
import { Endpoint } from "./endpoint.js";
import { randomId, type HelloAnswer, type HelloParams } from "./hub.js";

/** Where the hub runs: one worker for all tabs, one for this page, or the page itself. */
export type Mode = "shared" | "dedicated" | "page";

/** How a client reaches a hub. */
export interface Link {
  readonly mode: Mode;
  readonly port: MessagePort;
  /** Rejects with a `StartError` if the worker could not be started. */
  readonly failed: Promise<never>;
  /** Called once when the session ends, or does not begin. */
  readonly terminate: () => void;
}

/** A worker did not start, so that another mode may be tried. */
export class StartError extends CotensorError {}

/** What a client is. */
export interface ClientOptions {
  /** The beginning of the names of locks. */
  readonly scope: string;
  readonly holder: string;
  readonly locks: Locks | undefined;
  /** Milliseconds until a worker that does not answer counts as failed. */
  readonly startTimeout: number;
}

/** A page's side of a session. */
export class Connection {
  readonly #endpoint: Endpoint;
  readonly #link: Link;
  readonly #release: () => void;
  readonly #watching = new AbortController();
  /** A page in the browser's history cache would keep its leases until the browser forgets it. */
  readonly #onPageHide = (): void => this.abandon("the page was left");
  readonly #forgotten: FinalizationRegistry<number>;
  /** What gets the pieces of texts, by the number of the call that writes the text. */
  readonly #texts = new Map<unknown, ((piece: string) => void) | undefined>();
  #nextCall = 1;
  #end: (reason: CotensorError) => void = () => undefined;
  /** Resolves with the reason when the session ends: `close`, or the end of the worker. */
  readonly closed: Promise<CotensorError> = new Promise((resolve) => (this.#end = resolve));

  private constructor(
    link: Link,
    endpoint: Endpoint,
    release: () => void,
    readonly holder: string,
    /** The devices that the hub has memory on. */
    readonly devices: readonly Device[],
  ) {
    this.#link = link;
    this.#endpoint = endpoint;
    this.#release = release;
    pageEvents().addEventListener?.("pagehide", this.#onPageHide);
    this.#forgotten = new FinalizationRegistry((handle) => endpoint.notify("release", { handle }));
  }

  /** Opens a session. */
  static async open(link: Link, { scope, holder, locks, startTimeout }: ClientOptions): Promise<Connection> {
    const lock = locks && `${scope}.client.${randomId()}`;
    const release = locks && lock !== undefined ? await holdLock(locks, lock) : () => undefined;
    // A boxed reference: the worker's messages may come before the connection exists.
    const opened: { connection?: Connection } = {};
    const endpoint = new Endpoint(link.port, {
      request: (method) => Promise.reject(new CotensorError("Unsupported", `${method}: a page has no methods`)),
      notification: (method, params) => {
        const { reason, call, piece } = (params ?? {}) as { reason?: unknown; call?: unknown; piece?: unknown };
        if (method === "text" && typeof piece === "string") opened.connection?.give(call, piece);
        if (method === "ended") opened.connection?.abandon(typeof reason === "string" ? reason : "the worker ended the session");
      },
    });
    try {
      const hello: HelloParams = { version: VERSION, holder, lock };
      const answer = (await inTime(endpoint.call("hello", hello), link, startTimeout)) as HelloAnswer;
      const connection = new Connection(link, endpoint, release, holder, answer.devices);
      opened.connection = connection;
      if (locks && answer.lock !== undefined) {
        whenFree(locks, answer.lock, connection.#watching.signal, () => connection.abandon("the worker ended"));
      }
      return connection;
    } catch (error) {
      endpoint.close(new CotensorError("Unreachable", "the worker did not answer"));
      release();
      link.terminate();
      throw error;
    }
  }

  get mode(): Mode {
    return this.#link.mode;
  }

  get isClosed(): boolean {
    return this.#endpoint.isClosed;
  }

  /** The number of calls that wait for answers. */
  get outstanding(): number {
    return this.#endpoint.outstanding;
  }

  /** Calls a method of the hub. The objects in `transfer` move there without a copy. */
  async call<Result>(method: string, params: object, transfer: Transferable[] = []): Promise<Result> {
    return (await this.#endpoint.call(method, params, transfer)) as Result;
  }

  /** Calls a method that `signal` cancels, and that gives pieces of a text before its answer. `onText` must not throw. */
  async cancellable<Result>(method: string, params: object, signal: AbortSignal, onText?: (piece: string) => void): Promise<Result> {
    signal.throwIfAborted();
    const call = this.#nextCall;
    this.#nextCall += 1;
    const cancel = (): void => this.#endpoint.notify("cancel", { call });
    this.#texts.set(call, onText);
    signal.addEventListener("abort", cancel);
    try {
      return await this.call(method, { ...params, call, text: onText !== undefined });
    } finally {
      signal.removeEventListener("abort", cancel);
      this.#texts.delete(call);
    }
  }

  /** Releases `handle` when the garbage collector removes `object`. */
  register(object: object, handle: number): void {
    this.#forgotten.register(object, handle, object);
  }

  /** Releases an object of the session now. The hub does it before later calls of this client. */
  release(object: object, handle: number): void {
    this.#forgotten.unregister(object);
    this.#endpoint.notify("release", { handle });
  }

  /** Ends the session: the hub disposes everything that this client holds. A second call does nothing. */
  async close(): Promise<void> {
    if (this.isClosed) return;
    this.#watching.abort();
    await this.#endpoint.call("close", {}).catch(() => undefined);
    this.abandon("the connection was closed");
  }

  private give(call: unknown, piece: string): void {
    this.#texts.get(call)?.(piece);
  }

  private abandon(fact: string): void {
    const reason = new CotensorError("Unreachable", `${fact}; connect again`);
    pageEvents().removeEventListener?.("pagehide", this.#onPageHide);
    this.#watching.abort();
    this.#endpoint.close(reason);
    this.#release();
    this.#link.terminate();
    this.#end(reason);
  }
}

/** Node has no events of a page. */
function pageEvents(): Partial<Pick<EventTarget, "addEventListener" | "removeEventListener">> {
  return globalThis as Partial<EventTarget>;
}

/** The answer, unless the worker fails or does not answer in time. */
async function inTime<Value>(answer: Promise<Value>, { mode, failed }: Link, startTimeout: number): Promise<Value> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<never>((_resolve, reject) => {
    const error = new StartError("TimedOut", `the ${mode} worker did not answer for ${startTimeout} ms`);
    timer = setTimeout(() => reject(error), startTimeout);
  });
  try {
    return await Promise.race([answer, failed, late]);
  } finally {
    clearTimeout(timer);
  }
}

// The hub of all tabs: `connection.ts` is its client in a page, `handlers.ts` the table of its methods, `../locks.ts` tells the end of a tab.
import { CotensorError } from "../errors.js";
import { holdLock, whenFree, type Locks } from "../locks.js";
import type { Device } from "../types.js";
import { VERSION } from "../version.js";
import { Endpoint } from "./endpoint.js";
import type { Handlers, HubContent } from "./handler.js";
import { HANDLERS } from "./handlers.js";
import { optionalText, text } from "./fields.js";
import { Session } from "./session.js";

/** Parameters of the first call on a port, `hello`. */
export interface HelloParams {
  /** The version of the client's package, which must be the worker's. */
  readonly version: string;
  /** The name of the client's leases. */
  readonly holder: string;
  /** The lock that the client holds while it lives. */
  readonly lock: string | undefined;
}

/** The answer to `hello`. */
export interface HelloAnswer {
  /** The lock that the worker holds while it lives; the client waits for it. */
  readonly lock: string | undefined;
  readonly devices: readonly Device[];
}

/** What a hub consists of. */
export interface HubOptions {
  /** The beginning of the names of locks. */
  readonly name: string;
  readonly content: () => Promise<HubContent>;
  readonly handlers: Handlers;
  /** Without locks, a session ends with its `close` only. */
  readonly locks: Locks | undefined;
}

const HOLDER_LENGTH_MAX = 200;

/** The browser's daemon: one store, and a session for each client. It runs in a worker, or in the page without one. */
export class Hub {
  readonly #content: () => Promise<HubContent>;
  readonly #handlers: Handlers;
  readonly #locks: Locks | undefined;
  readonly #lock: Promise<string | undefined>;
  /** The clients, and the function that ends each with a reason. */
  readonly #sessions = new Map<Session, (reason: string) => void>();
  #end: (reason: string) => void = () => undefined;
  #reason: string | undefined;
  /** Resolves with the reason when the hub ended. */
  readonly ended: Promise<string> = new Promise((resolve) => (this.#end = resolve));

  constructor({ name, content, handlers, locks }: HubOptions) {
    const twice = Object.keys(handlers).find((method) => method in HANDLERS);
    if (twice !== undefined) throw new CotensorError("Invalid", `handlers: the worker has a method ${twice} already`);
    this.#handlers = { ...HANDLERS, ...handlers };
    this.#content = content;
    this.#locks = locks;
    const lock = `${name}.worker.${randomId()}`;
    this.#lock = locks ? holdLock(locks, lock).then(() => lock) : Promise.resolve(undefined);
    // Clients get the error with the answer to `hello`.
    this.#lock.catch(() => undefined);
  }

  /** The number of clients. */
  get sessionCount(): number {
    return this.#sessions.size;
  }

  /** Serves a client on a port, which the first call of the client opens. */
  accept(port: MessagePort): void {
    let session: Session | undefined;
    let ended = (): void => undefined;
    const request = async (method: string, params: unknown): Promise<unknown> => {
      const fields = (typeof params === "object" && params !== null ? params : {}) as Record<string, unknown>;
      if (session === undefined) {
        this.#checkRuns();
        if (method !== "hello") throw new CotensorError("Conflict", `${method}: the first call of a client is hello`);
        const answer = await this.#hello(fields);
        session = new Session(text(fields, "holder"));
        ended = this.#watch(session, optionalText(fields, "lock"), endpoint);
        return answer;
      }
      if (method === "close") return ended();
      const handler = Object.hasOwn(this.#handlers, method) ? this.#handlers[method] : undefined;
      if (!handler) throw new CotensorError("Unsupported", `${method}: the worker has no such method`);
      return handler(fields, { ...(await this.#content()), session, notify: (name, value) => endpoint.notify(name, value) });
    };
    const notification = (method: string, params: unknown): void => {
      const { handle, call } = (params ?? {}) as { handle?: unknown; call?: unknown };
      if (method === "release") session?.release(handle);
      else if (method === "cancel") session?.cancel(call);
    };
    const endpoint = new Endpoint(port, { request, notification });
  }

  /** Ends all sessions, and tells the clients the reason. They connect again, to another hub. */
  end(reason: string): void {
    this.#reason ??= reason;
    for (const end of [...this.#sessions.values()]) end(reason);
    this.#end(reason);
  }

  #checkRuns(): void {
    if (this.#reason !== undefined) throw new CotensorError("Unreachable", `${this.#reason}; connect again`);
  }

  async #hello(params: Record<string, unknown>): Promise<HelloAnswer> {
    const version = text(params, "version");
    if (version !== VERSION) {
      const way = "reload all tabs of the site; the browser may keep an old script of the worker";
      throw new CotensorError("Unsupported", `the page has cotensor ${version}, the worker ${VERSION}: ${way}`);
    }
    const holder = text(params, "holder");
    if (holder === "" || holder.length > HOLDER_LENGTH_MAX) {
      throw new CotensorError("Invalid", `holder: a text of 1 to ${HOLDER_LENGTH_MAX} characters is required`);
    }
    const { store } = await this.#content();
    this.#checkRuns();
    return { lock: await this.#lock, devices: store.getStats().devices.map(({ device }) => device as Device) };
  }

  /** Ends the session when the client's lock is free. Returns what a client's `close` calls. */
  #watch(session: Session, lock: string | undefined, endpoint: Endpoint): () => void {
    const waiting = new AbortController();
    const end = (): void => {
      waiting.abort();
      this.#sessions.delete(session);
      session.end();
    };
    const tell = (reason: string): void => {
      end();
      endpoint.notify("ended", { reason });
      endpoint.close(new CotensorError("Unreachable", reason));
    };
    this.#sessions.set(session, tell);
    if (this.#locks && lock !== undefined) {
      // A page that only lost its lock learns that its leases ended.
      whenFree(this.#locks, lock, waiting.signal, () => tell("the worker ended the session, because the page lost its lock"));
    }
    return end;
  }
}

/** 128 random bits. `crypto.randomUUID` exists in secure contexts only. */
export function randomId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

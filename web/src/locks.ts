import { CotensorError } from "./errors.js";

/** Options of `Locks.request`, as in the Web Locks API. */
export interface LockRequest {
  readonly mode?: "exclusive" | "shared";
  /** Calls back with null at once when the lock is held. */
  readonly ifAvailable?: boolean;
  /** Ends the waiting, not the holding. */
  readonly signal?: AbortSignal | undefined;
}

/** The part of `LockManager` that the package uses. */
export interface Locks {
  request<Result>(name: string, options: LockRequest, callback: (lock: object | null) => Result | Promise<Result>): Promise<Result>;
}

/** The locks of all tabs and workers of the site, if the browser has them. They exist in secure contexts only. */
export function siteLocks(): Locks | undefined {
  return (globalThis.navigator as Navigator | undefined)?.locks as Locks | undefined;
}

interface Waiter {
  readonly shared: boolean;
  readonly grant: () => void;
}

interface Queue {
  holders: number;
  /** Whether the holders are shared ones. */
  shared: boolean;
  readonly waiters: Waiter[];
}

/** Locks among the callers in one page or worker, with the rules of Web Locks: first come, first served. */
export class RealmLocks implements Locks {
  readonly #queues = new Map<string, Queue>();

  async request<Result>(name: string, options: LockRequest, callback: (lock: object | null) => Result | Promise<Result>): Promise<Result> {
    const { mode = "exclusive", ifAvailable = false, signal } = options;
    signal?.throwIfAborted();
    const shared = mode === "shared";
    const queue = this.#queues.get(name) ?? { holders: 0, shared, waiters: [] };
    this.#queues.set(name, queue);
    if (free(queue, shared) && queue.waiters.length === 0) {
      take(queue, shared);
    } else if (ifAvailable) {
      return callback(null);
    } else {
      await this.#wait(name, queue, shared, signal);
    }
    try {
      return await callback({ name, mode });
    } finally {
      queue.holders -= 1;
      this.#advance(name, queue);
    }
  }

  #wait(name: string, queue: Queue, shared: boolean, signal: AbortSignal | undefined): Promise<void> {
    return new Promise((resolve, reject) => {
      const waiter = { shared, grant };
      const abort = (): void => {
        queue.waiters.splice(queue.waiters.indexOf(waiter), 1);
        this.#advance(name, queue);
        reject(signal?.reason as Error);
      };
      function grant(): void {
        signal?.removeEventListener("abort", abort);
        resolve();
      }
      signal?.addEventListener("abort", abort);
      queue.waiters.push(waiter);
    });
  }

  #advance(name: string, queue: Queue): void {
    for (let next = queue.waiters[0]; next && free(queue, next.shared); next = queue.waiters[0]) {
      queue.waiters.shift();
      take(queue, next.shared);
      next.grant();
    }
    if (queue.holders === 0) this.#queues.delete(name);
  }
}

function free(queue: Queue, shared: boolean): boolean {
  return queue.holders === 0 || (shared && queue.shared);
}

function take(queue: Queue, shared: boolean): void {
  queue.holders += 1;
  queue.shared = shared;
}

/** Takes a lock that is free, and returns the function that releases it. */
export function holdLock(locks: Locks, name: string): Promise<() => void> {
  return new Promise((resolve, reject) => {
    const held = (lock: object | null): Promise<void> | undefined => {
      if (lock === null) {
        reject(new CotensorError("Conflict", `the lock ${name} is held by another page or worker`));
        return undefined;
      }
      return new Promise((release) => resolve(release));
    };
    locks.request(name, { ifAvailable: true }, held).catch(reject);
  });
}

/** Calls back once the lock is free: its holder released it, or ended. Aborting the signal ends the waiting. */
export function whenFree(locks: Locks, name: string, signal: AbortSignal, callback: () => void): void {
  const call = (): void => {
    if (!signal.aborted) callback();
  };
  // A browser that refuses the lock would leave the holder unwatched, so a refusal counts as its end.
  locks.request(name, { signal }, () => undefined).then(call, call);
}

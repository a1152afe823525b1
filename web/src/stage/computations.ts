import type { RunResult } from "../engine/api.js";
import type { Store } from "../store.js";
import type { Tensor } from "../tensor.js";
import type { Kind } from "../types.js";

/** A computation: what it makes and for whom. */
export interface Claim {
  /** Equal keys are equal results. */
  readonly key: string;
  /** The names of the results in the store. */
  readonly names: readonly string[];
  readonly kind: Kind;
  /** The holder of the leases. */
  readonly holder: string;
}

/** The result of a computation. */
export interface Claimed {
  /** One lease of the holder for each name. */
  readonly outputs: Tensor[];
  /** Whether this call computed it. */
  readonly computed: boolean;
}

interface Waiter {
  readonly holder: string;
  readonly resolve: (outputs: Tensor[] | undefined) => void;
  readonly reject: (error: unknown) => void;
}

/** Results that are computed once, and kept in the store until their memory is needed. */
export class Computations {
  /** The callers that wait for each running computation. */
  readonly #running = new Map<string, Waiter[]>();

  constructor(readonly store: Store) {}

  /** The number of computations that run. */
  get running(): number {
    return this.#running.size;
  }

  /**
   * The result of a key. The first caller computes it with `compute`, which publishes the names; others wait for it. After a
   * failed computation, and after one whose result stays private, the next caller computes.
   *
   * If the configuration of sharing refuses the kind, no caller waits: the result would stay private.
   */
  async once(claim: Claim, compute: () => Promise<RunResult>): Promise<Claimed> {
    if (this.#refuses(claim.kind)) return { outputs: (await compute()).outputs, computed: true };
    for (;;) {
      const found = this.#find(claim.names, claim.holder);
      if (found) return { outputs: found, computed: false };
      const waiters = this.#running.get(claim.key);
      if (!waiters) return this.#compute(claim, compute);
      const outputs = await new Promise<Tensor[] | undefined>((resolve, reject) => waiters.push({ holder: claim.holder, resolve, reject }));
      if (outputs) return { outputs, computed: false };
    }
  }

  async #compute({ key, names }: Claim, compute: () => Promise<RunResult>): Promise<Claimed> {
    const waiters: Waiter[] = [];
    this.#running.set(key, waiters);
    try {
      const { outputs } = await compute();
      return { outputs, computed: true };
    } finally {
      this.#running.delete(key);
      // Leases for all that wait, before the caller can release its own. Without a result each tries again, in order.
      for (const waiter of waiters) this.#settle(waiter, names);
    }
  }

  /** A store that was disposed meanwhile is an error of each waiter. */
  #settle({ holder, resolve, reject }: Waiter, names: readonly string[]): void {
    try {
      resolve(this.#find(names, holder));
    } catch (error) {
      reject(error);
    }
  }

  /** Leases of all results; nothing if one is missing. */
  #find(names: readonly string[], holder: string): Tensor[] | undefined {
    if (names.length === 0 || !names.every((name) => this.store.has(name))) return undefined;
    return names.map((name) => this.store.get(name, holder));
  }

  #refuses(kind: Kind): boolean {
    const { enableSharedTensors = true, allowedTypes } = this.store.sharedTensorConfig;
    return !enableSharedTensors || (allowedTypes !== undefined && !allowedTypes.includes(kind));
  }
}

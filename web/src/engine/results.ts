// The outputs of one run, as tensors of the store.
import { CotensorError } from "../errors.js";
import type { Reservation } from "../reservation.js";
import type { Store } from "../store.js";
import type { Tensor } from "../tensor.js";
import { dtypeOf, type Device, type DType } from "../types.js";
import type { HostArray, OutputOptions, RunResult } from "./api.js";

/**
 * Reserves and publishes the outputs of a run. The configuration of sharing may refuse one: then all are private, so that no
 * caller finds some of them.
 */
export class Results {
  readonly #reservations: (Reservation | undefined)[] = [];
  readonly #shared = new Set<Reservation>();
  isPrivate = false;

  constructor(
    readonly store: Store,
    readonly holder: string | undefined,
    readonly options: readonly OutputOptions[],
  ) {
    this.isPrivate = options.some((each) => each.private ?? false);
  }

  /** Whether an output stays without leases. */
  get isCached(): boolean {
    return this.options.some(({ cached }) => cached);
  }

  /** Memory for an output. */
  reserve(index: number, dtype: DType, shape: readonly number[], device: Device): Reservation {
    return this.#add(index, (name, options) => this.store.reserve(name, { ...options, dtype, shape, device }));
  }

  /** An output that is an array of the host already. */
  adopt(index: number, dtype: DType, shape: readonly number[], array: ArrayBufferView): Reservation {
    return this.#add(index, (name, options) => this.store.reserveAdopted(name, array, { ...options, dtype, shape }));
  }

  /** Publishes all outputs. `milliseconds` is the time that computing them again takes. */
  publish(milliseconds: number): Tensor[] {
    const reservations = this.#reservations.filter((each) => each !== undefined);
    return reservations.map((reservation) => {
      reservation.setRecompute(milliseconds);
      const tensor = reservation.publish();
      // Reserved before another output was refused. Without its name, its last lease frees it.
      if (this.isPrivate && this.#shared.has(reservation)) this.store.remove(tensor.name);
      return tensor;
    });
  }

  /** Gives the memory back that is not published. */
  dispose(): void {
    for (const reservation of this.#reservations.splice(0)) reservation?.dispose();
    this.#shared.clear();
  }

  #add(index: number, make: (name: string, options: Omit<OutputOptions, "name"> & { holder?: string }) => Reservation): Reservation {
    const { name, ...described } = this.options[index] as OutputOptions;
    const options = this.holder === undefined ? described : { ...described, holder: this.holder };
    if (!this.isPrivate) {
      try {
        const reservation = make(name, options);
        this.#reservations[index] = reservation;
        this.#shared.add(reservation);
        return reservation;
      } catch (error) {
        if (!(error instanceof CotensorError) || error.kind !== "Refused") throw error;
        this.isPrivate = true;
      }
    }
    return (this.#reservations[index] = make(name, { ...options, private: true }));
  }
}

/** Publishes an array that a program computed, without a copy. Where the configuration of sharing refuses it, it is private. */
export function publishArray(store: Store, holder: string, output: OutputOptions, { data, shape, dtype }: HostArray, milliseconds: number): RunResult {
  const results = new Results(store, holder, [output]);
  try {
    results.adopt(0, dtype ?? dtypeOf(data), shape, data);
    return { outputs: results.publish(milliseconds), isPrivate: results.isPrivate, milliseconds };
  } finally {
    results.dispose();
  }
}

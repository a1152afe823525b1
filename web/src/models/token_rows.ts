// Texts as tokens, and parts of them as the inputs of one run.
import type { HostArray } from "../engine/api.js";
import { takeArray, type Tokens } from "./core.js";

/** The most texts of one run of the graph. */
const RUN_TEXTS_MAX = 32;
/** The most rows times squared tokens of one run, padding included: attention needs memory for each. A longer text runs alone. */
const RUN_SQUARES_MAX = 1 << 20;
/** A CPU computes padding, too: the longest text of a run has at most this much more tokens than the shortest. */
const RUN_SPREAD = 1.25;
const RUN_SPREAD_MIN = 8;

/** How many of the first texts run together. `counts` are their tokens, in ascending order; `fixed` is the number that the graph reads, if it is fixed. */
export function runLength(counts: readonly number[], fixed?: number): number {
  const [shortest] = counts;
  if (shortest === undefined) return 0;
  const longest = Math.max(Math.floor(shortest * RUN_SPREAD), shortest + RUN_SPREAD_MIN);
  const last = counts.findIndex((count, before) => before === RUN_TEXTS_MAX || count > longest || (before + 1) * (fixed ?? count) ** 2 > RUN_SQUARES_MAX);
  return last < 0 ? counts.length : Math.max(last, 1);
}

/** The tokens of several texts, padded to the longest. */
export class TokenRows {
  /** By source of a graph's input. Each array has a row for each text. */
  readonly #arrays: ReadonlyMap<string, BigInt64Array>;
  readonly #width: number;
  readonly #isLeftPadded: boolean;
  /** The tokens of each text, padding not counted. */
  readonly counts: readonly number[];
  /** Whether each text was longer than the limit. */
  readonly truncated: readonly boolean[];

  /** Frees `tokens`. With a fixed length, all runs have it. */
  constructor(
    tokens: Tokens,
    readonly length: number | undefined,
  ) {
    try {
      const ids = takeArray(tokens.ids());
      const numbers = ({ data }: HostArray): BigInt64Array => data as BigInt64Array;
      const mask = numbers(takeArray(tokens.mask()));
      this.#width = ids.shape[1] ?? 0;
      this.#arrays = new Map([
        ["text.ids", numbers(ids)],
        ["text.mask", mask],
        ["text.types", numbers(takeArray(tokens.types()))],
        ["text.positions", numbers(takeArray(tokens.positions()))],
      ]);
      const row = (index: number): BigInt64Array => mask.subarray(index * this.#width, (index + 1) * this.#width);
      this.counts = Array.from({ length: ids.shape[0] ?? 0 }, (_, index) => row(index).reduce((sum, each) => sum + Number(each), 0));
      this.#isLeftPadded = this.counts.some((_, index) => row(index)[0] === 0n);
      this.truncated = Array.from(tokens.truncated(), (each) => each === 1);
    } finally {
      tokens.free();
    }
  }

  /** The ids of one text, without padding. */
  ids(row: number): BigInt64Array {
    return this.#part("text.ids", row, this.counts[row] ?? 0);
  }

  /** The tokens of a run of these texts. */
  width(rows: readonly number[]): number {
    return this.length === undefined ? Math.max(...rows.map((row) => this.counts[row] ?? 0)) : this.#width;
  }

  /** The mask of one text in a run of this width, one byte for each token. */
  mask(row: number, width: number): Uint8Array {
    return Uint8Array.from(this.#part("text.mask", row, width), Number);
  }

  /** The input from `source` for a run of these texts; nothing for a source that is not text. */
  input(source: string, rows: readonly number[]): HostArray | undefined {
    if (!this.#arrays.has(source)) return undefined;
    const width = this.width(rows);
    const data = new BigInt64Array(rows.length * width);
    rows.forEach((row, index) => data.set(this.#part(source, row, width), index * width));
    return { data, shape: [rows.length, width], dtype: "int64" };
  }

  #part(source: string, row: number, width: number): BigInt64Array {
    const start = row * this.#width + (this.#isLeftPadded ? this.#width - width : 0);
    return (this.#arrays.get(source) as BigInt64Array).subarray(start, start + width);
  }
}

// Texts as tokens, and parts of them as the inputs of one run.
import type { HostArray } from "../engine/api.js";
import { takeArray, type Tokens } from "./core.js";

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

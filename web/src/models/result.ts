// Results of `process`.
import { CotensorError } from "../errors.js";
import type { SharedTensor } from "../shared_tensor.js";
import type { Kind } from "../types.js";
import type { Answer, Output } from "./answers.js";

/** The run of one stage. */
export interface StageReport {
  readonly role: string;
  /** The encoder of the result, as 64 hexadecimal digits. */
  readonly space: string | undefined;
  /** Whether this call computed the result. Otherwise another one had computed it. */
  readonly computed: boolean;
  /** Milliseconds for loading the graph in this call. */
  readonly load_ms: number;
  /** Milliseconds for running it, or for waiting for the result. */
  readonly run_ms: number;
}

/** The result of an input. */
export class Result<Shared = SharedTensor> {
  constructor(
    readonly model: string,
    readonly task: string,
    readonly answer: Answer,
    /** The numbers behind the answer. */
    readonly outputs: readonly Output[],
    /** The tensors that the model made, by kind. The model holds them until its next input. */
    readonly output_tensors: Readonly<Partial<Record<Kind, Shared>>>,
    readonly stages: readonly StageReport[],
    /** Changes of the inputs, and what the answer depends on beside them. */
    readonly notices: readonly string[],
  ) {}

  /** The text that the model heard, or wrote. */
  get text(): string {
    if (this.answer.type === "transcript" || this.answer.type === "text") return this.answer.text;
    throw new CotensorError("Invalid", `text: the answer is not text but of type ${this.answer.type}`);
  }
}

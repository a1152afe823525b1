import type { Graph, Input, RunResult } from "../engine/api.js";
import { DEFAULT_HOLDER } from "../store.js";
import type { Tensor } from "../tensor.js";
import type { Kind } from "../types.js";
import type { Computations } from "./computations.js";
import { stageKey, type StageHashes } from "./keys.js";

/** Options of a stage. */
export interface StageOptions {
  /** The stage's place in its model, such as `vision`; part of the names of results. */
  readonly role: string;
  readonly graph: Graph;
  /** The meaning of its results; `other` by default. */
  readonly kind?: Kind;
  /** The encoder, as 64 hexadecimal digits. Without it the stage computes each time, and its results are private. */
  readonly space?: string | undefined;
  readonly computations: Computations;
  readonly hashes: StageHashes;
}

/** What a run of a stage gives. */
export interface StageRun {
  /** The outputs, in the order of the request. Each is one lease of the holder. */
  readonly outputs: Tensor[];
  /** Whether this call ran the graph. */
  readonly computed: boolean;
  /** From the call to the result, waiting included. */
  readonly milliseconds: number;
}

/** A graph whose results are computed once for equal inputs, by whichever model asks first. */
export class Stage {
  readonly role: string;
  readonly graph: Graph;
  readonly kind: Kind;
  readonly space: string | undefined;

  constructor(private readonly options: StageOptions) {
    this.role = options.role;
    this.graph = options.graph;
    this.kind = options.kind ?? "other";
    this.space = options.space;
  }

  /** The key of the result for these inputs; nothing for a stage without a space. */
  key(inputs: Readonly<Record<string, Input>>, outputs: readonly string[]): string | undefined {
    return this.space === undefined ? undefined : stageKey(this.options.hashes, this.space, this.graph, inputs, outputs);
  }

  /** The outputs for these inputs: from the store, or computed. */
  async run(inputs: Readonly<Record<string, Input>>, outputs: readonly string[], holder: string = DEFAULT_HOLDER): Promise<StageRun> {
    const start = performance.now();
    const key = this.key(inputs, outputs);
    const { outputs: tensors, computed } = key === undefined ? await this.#alone(inputs, outputs, holder) : await this.#once(key, inputs, outputs, holder);
    return { outputs: tensors, computed, milliseconds: performance.now() - start };
  }

  #once(key: string, inputs: Readonly<Record<string, Input>>, outputs: readonly string[], holder: string): Promise<{ outputs: Tensor[]; computed: boolean }> {
    const { hashes, computations } = this.options;
    const name = (output: string): string => `${this.role}.${output}/${key}`;
    const describe = (output: string, index: number): { name: string; kind: Kind; space: string; provenance: string; cached: true } => ({
      ...{ name: name(output), kind: this.kind, space: this.space as string },
      provenance: hashes.provenance(key, index),
      cached: true,
    });
    const compute = (): Promise<RunResult> => this.graph.run(inputs, outputs, { holder, describe });
    return computations.once({ key, names: outputs.map(name), kind: this.kind, holder }, compute);
  }

  async #alone(inputs: Readonly<Record<string, Input>>, outputs: readonly string[], holder: string): Promise<{ outputs: Tensor[]; computed: boolean }> {
    const describe = (output: string): { name: string; kind: Kind; private: true } => ({ name: `${this.role}.${output}`, kind: this.kind, private: true });
    const run = await this.graph.run(inputs, outputs, { holder, describe });
    return { outputs: run.outputs, computed: true };
  }
}

// The stages of one loaded model: imported graphs in the engine.
import type { Graph, Input, Port } from "../engine/api.js";
import type { Stage, StageRun } from "../stage/stage.js";
import type { Tensor } from "../tensor.js";

/** A stage of a model, with the part of its graph that other models share, if it is cut there. */
export class ModelStage {
  constructor(
    private readonly stage: Stage,
    /** The part before, and the input that reads its result. */
    private readonly before?: { readonly stage: Stage; readonly input: string },
  ) {}

  get role(): string {
    return this.stage.role;
  }

  get space(): string | undefined {
    return this.stage.space;
  }

  get graph(): Graph {
    return this.stage.graph;
  }

  /** What the model gives the stage. */
  get inputs(): readonly Port[] {
    if (!this.before) return this.graph.inputs;
    const { stage, input } = this.before;
    const own = this.graph.inputs.filter(({ name }) => name !== input && stage.graph.inputs.every((each) => each.name !== name));
    return [...stage.graph.inputs, ...own];
  }

  get outputs(): readonly Port[] {
    return this.graph.outputs;
  }

  /** The outputs for these inputs: from the store, or computed. */
  async run(inputs: Readonly<Record<string, Input>>, outputs: readonly string[], holder: string): Promise<StageRun> {
    if (!this.before) return this.stage.run(inputs, outputs, holder);
    const { stage, input } = this.before;
    const first = await stage.run(ofGraph(stage.graph, inputs), [input], holder);
    const [result] = first.outputs;
    try {
      const second = await this.stage.run(ofGraph(this.graph, { ...inputs, ...(result ? { [input]: result } : {}) }), outputs, holder);
      return { outputs: second.outputs, computed: first.computed || second.computed, milliseconds: first.milliseconds + second.milliseconds };
    } finally {
      for (const each of first.outputs) each.dispose();
    }
  }

  /** Runs the stage once, for results that only the caller reads. */
  async runAlone(inputs: Readonly<Record<string, Input>>, outputs: readonly string[], holder: string): Promise<Tensor[]> {
    const run = async ({ graph, role }: Stage, given: Readonly<Record<string, Input>>, wanted: readonly string[]): Promise<Tensor[]> => {
      const describe = (output: string): { name: string; private: true } => ({ name: `${role}.${output}`, private: true });
      return (await graph.run(ofGraph(graph, given), wanted, { holder, describe })).outputs;
    };
    if (!this.before) return run(this.stage, inputs, outputs);
    const { stage, input } = this.before;
    const first = await run(stage, inputs, [input]);
    const [result] = first;
    try {
      return await run(this.stage, { ...inputs, ...(result ? { [input]: result } : {}) }, outputs);
    } finally {
      for (const each of first) each.dispose();
    }
  }

  async release(): Promise<void> {
    await this.before?.stage.graph.release();
    await this.graph.release();
  }
}

function ofGraph(graph: Graph, inputs: Readonly<Record<string, Input>>): Record<string, Input> {
  return Object.fromEntries(graph.inputs.flatMap(({ name }) => (inputs[name] ? [[name, inputs[name]]] : [])));
}

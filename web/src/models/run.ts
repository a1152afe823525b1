// One run of a task: the stages in order, each on the values that its description names.
import type { HostArray, Input, Port } from "../engine/api.js";
import { publishArray } from "../engine/results.js";
import { CotensorError } from "../errors.js";
import type { SharedTensor } from "../shared_tensor.js";
import { Tensor } from "../tensor.js";
import type { Kind } from "../types.js";
import { labelled, normalized, readRows, dot, sigmoid, softmax, type Answer, type Output } from "./answers.js";
import { LOGITS, reads, resultName, sourceOf, type StageDef, type Task } from "./definition.js";
import type { Inputs } from "./inputs.js";
import type { LoadedModel } from "./loaded_model.js";
import type { ModelStage } from "./stages.js";
import type { StageReport } from "./result.js";

/** The values of one run and its report. Its leases end with `dispose`. */
export class Run {
  readonly stages: StageReport[] = [];
  readonly notices: string[] = [];
  /** By source: `text.ids`, `encoder.last_hidden_state`. */
  readonly #values = new Map<string, Input>();
  readonly #leases: Tensor[] = [];

  constructor(
    readonly model: LoadedModel,
    /** The holder of the run's leases. */
    readonly holder: string,
    readonly inputs: Inputs,
    readonly task: Task,
    /** Tensors of other models, by the role of the stage whose result they replace. */
    private readonly given: ReadonlyMap<string, SharedTensor> = new Map(),
    /** Ends the run before its next stage. */
    readonly signal?: AbortSignal,
  ) {}

  /** Runs the stages of the task, and reads the answer. */
  async answer(head: string | undefined): Promise<{ answer: Answer; outputs: Output[] }> {
    const { task } = this;
    let last: { tensor: Input; name: string } | undefined;
    for (const role of this.model.roles(task)) {
      const def = this.model.def(role);
      last = (await this.#given(def)) ?? (await this.#encode(def, task, head));
    }
    if (!last) throw new CotensorError("Unsupported", `${task.name}: the task has no stages`);
    if (task.head && last.name !== LOGITS) last = await this.#head(last.tensor, task, head);
    return this.#read(task, head, last);
  }

  /** The tensors that the stages made, by kind, as leases of the run's holder. */
  made(): Partial<Record<Kind, Tensor>> {
    const made: Partial<Record<Kind, Tensor>> = {};
    for (const def of this.model.stageDefs) {
      const value = def.outputs[0] === undefined ? undefined : this.#values.get(`${def.role}.${def.outputs[0]}`);
      if (value instanceof Tensor && def.kind !== "other") made[def.kind] = value.leaseFor(this.holder);
    }
    return made;
  }

  setValue(source: string, value: Input): void {
    this.#values.set(source, value);
    if (value instanceof Tensor) this.#leases.push(value);
  }

  /** The numbers of a value. A copy from a device is counted with the reason. */
  async numbers(value: Input, reason: string): Promise<Float32Array> {
    const array = value instanceof Tensor ? (value.device === "cpu" && value.isContiguous ? value.array() : await value.read(reason)) : value.data;
    if (array instanceof Float32Array) return array;
    throw new CotensorError("Unsupported", `${reason}: the output has no float32 numbers`);
  }

  /** The result of a stage, or the tensor of another model in its place. */
  async result(role: string): Promise<Input> {
    const def = this.model.def(role);
    const found = (await this.#given(def)) ?? (await this.#encode(def));
    return found.tensor;
  }

  /** The output of a stage that the task reads. Graphs with a head of their own give the answer at once. */
  outputOf(def: StageDef, stage: ModelStage, task?: Task, head?: string): string {
    const names = stage.outputs.map(({ name }) => name);
    const direct = [task?.result ?? undefined, task?.head && head === undefined ? LOGITS : undefined].find((name) => name !== undefined && names.includes(name));
    const name = direct ?? resultName(def, names);
    if (name !== undefined) return name;
    throw new CotensorError("Unsupported", `${this.model.name}: ${def.role}: the graph gives ${names.join(", ")}, not ${def.outputs.join(", ")}`);
  }

  /** Runs a stage on the values that its description names. */
  async runStage(def: StageDef, stage: ModelStage, outputs: readonly string[]): Promise<Tensor[]> {
    this.signal?.throwIfAborted();
    const inputs: Record<string, Input> = {};
    for (const { name } of stage.inputs) {
      const source = sourceOf(def, name);
      if (source === undefined) throw new CotensorError("Unsupported", `${this.model.name}: ${def.role}: nothing gives its input ${name}`);
      inputs[name] = await this.source(source, def);
    }
    const run = await stage.run(inputs, outputs, this.holder);
    this.#leases.push(...run.outputs);
    this.report(def.role, stage.space, run.computed, run.milliseconds);
    return run.outputs;
  }

  report(role: string, space: string | undefined, computed: boolean, milliseconds: number): void {
    this.stages.push({ role, space, computed, load_ms: this.model.takeLoadTime(role), run_ms: milliseconds });
  }

  /** Tokens that a loop of several runs makes, once for equal `extra`: what they depend on beside the graphs of `roles`. */
  async once(roles: readonly string[], label: string, extra: readonly string[], compute: () => Promise<Uint32Array>): Promise<Uint32Array> {
    const stages = await Promise.all(roles.map((role) => this.model.stage(role)));
    const spaces = stages.flatMap(({ space }) => space ?? []);
    const [stage] = stages;
    if (!stage || spaces.length < stages.length) return compute();
    const key = this.model.keyOnce(stage, label, [...spaces, ...extra]);
    const name = `${label}.tokens/${key}`;
    const start = performance.now();
    const claim = { key, names: [name], kind: this.model.def(roles[0] ?? "").kind, holder: this.holder };
    const { outputs, computed } = await this.model.backend.computations.once(claim, async () => {
      const data = new Uint32Array(await compute());
      const output = { name, kind: claim.kind, cached: true };
      return publishArray(this.model.backend.store, this.holder, output, { data, shape: [data.length] }, performance.now() - start);
    });
    this.report(roles[0] ?? label, stage.space, computed, performance.now() - start);
    const [tensor] = outputs;
    if (!tensor) throw new CotensorError("Engine", `${label}: the store lost a result`);
    this.#leases.push(tensor);
    return tensor.array() as Uint32Array;
  }

  dispose(): void {
    for (const lease of this.#leases.splice(0)) lease.dispose();
    this.#values.clear();
  }

  async #given(def: StageDef): Promise<{ tensor: Input; name: string } | undefined> {
    const shared = this.given.get(def.role);
    const name = def.outputs[0];
    if (!shared || name === undefined) return undefined;
    const tensor = await this.model.adapted(def, shared, this);
    this.setValue(`${def.role}.${name}`, tensor);
    return { tensor, name };
  }

  async #encode(def: StageDef, task?: Task, head?: string): Promise<{ tensor: Input; name: string }> {
    const stage = await this.model.stage(def.role);
    const name = this.outputOf(def, stage, task, head);
    const texts = reads(def, "text") ? (this.inputs.texts ?? []) : [];
    const tensor = texts.length > 0 ? await this.#encodeEach(def, stage, name, texts) : (await this.runStage(def, stage, [name]))[0];
    if (!tensor) throw new CotensorError("Engine", `${this.model.name}: ${def.role} gave no ${name}`);
    if (name === resultName(def, stage.outputs.map((each) => each.name))) this.#values.set(`${def.role}.${def.outputs[0] ?? name}`, tensor);
    return { tensor, name };
  }

  /** Each text by itself: models with different lists of texts share the results of equal texts, and no text is padded. */
  async #encodeEach(def: StageDef, stage: ModelStage, output: string, texts: readonly string[]): Promise<HostArray> {
    const rows: Float32Array[] = [];
    for (const text of texts) {
      this.#setTokens(text, def);
      const [row] = await this.runStage(def, stage, [output]);
      if (row) rows.push(await this.numbers(row, "compare texts with another embedding"));
    }
    const width = rows[0]?.length ?? 0;
    const data = new Float32Array(width * rows.length);
    rows.forEach((row, index) => data.set(row, index * width));
    return { data, shape: [rows.length, width] };
  }

  /** The value that a source names. Inputs are prepared when a stage first reads them. */
  async source(source: string, def: StageDef): Promise<Input> {
    const known = this.#values.get(source);
    if (known) return known;
    const [medium] = source.split(".");
    if (medium === "image" || medium === "audio") {
      await this.model.prepare(medium, this);
    } else if (medium === "text") {
      const [text] = this.inputs.text === undefined ? (this.inputs.texts ?? []) : [this.inputs.text];
      if (text === undefined) throw new CotensorError("Invalid", `text: ${def.role} of ${this.model.name} reads a text`);
      this.#setTokens(text, def);
    }
    const value = this.#values.get(source);
    if (value) return value;
    throw new CotensorError("Unsupported", `${this.model.name}: ${def.role} needs ${source}, which nothing gives`);
  }

  #setTokens(text: string, def: StageDef): void {
    const { truncated, ...tokens } = this.model.encodeText(text, def, this.task);
    for (const [name, value] of Object.entries(tokens)) this.#values.set(`text.${name}`, value);
    if (truncated) this.notices.push(`text: truncated to ${tokens.ids.shape[1] ?? 0} tokens`);
  }

  async #head(trunk: Input, task: Task, name: string | undefined): Promise<{ tensor: Input; name: string }> {
    const stage = await this.model.head(name, task);
    const [input, ...others] = stage.inputs;
    if (!input || others.length > 0) throw new CotensorError("Unsupported", `${this.model.name}: a head has exactly one input`);
    const output = headOutput(stage.outputs, this.model.name);
    const run = await stage.run({ [input.name]: trunk }, [output], this.holder);
    this.#leases.push(...run.outputs);
    this.report(stage.role, stage.space, run.computed, run.milliseconds);
    const [tensor] = run.outputs;
    if (!tensor) throw new CotensorError("Engine", `${this.model.name}: the head gave no ${output}`);
    return { tensor, name: LOGITS };
  }

  async #read(task: Task, head: string | undefined, last: { tensor: Input; name: string }): Promise<{ answer: Answer; outputs: Output[] }> {
    if (task.answer === "similarity") return this.#similarity(task);
    const { tensor } = last;
    // A copy: the program may write to its result, and other programs read the tensor.
    const values = (await this.numbers(tensor, `answer of ${task.name}`)).slice();
    const vector = (name: string, of: Float32Array): { answer: Answer; outputs: Output[] } => ({
      answer: { type: "embedding", width: of.length },
      outputs: [{ name, shape: [of.length], values: of }],
    });
    switch (task.answer) {
      case "label": {
        const width = readRows(tensor.shape, values, task.name);
        const labels = await this.model.labels(head, width);
        return { answer: labelled(values, labels), outputs: [{ name: LOGITS, shape: [...tensor.shape], values }] };
      }
      case "label-per-token": {
        const width = readRows(tensor.shape, values, task.name, 0);
        const { names } = await this.model.labels(head, width);
        const tokens = this.model.labelledTokens(this.inputs.text ?? "", values, width, names);
        return { answer: { type: "tokens", tokens }, outputs: [{ name: LOGITS, shape: [...tensor.shape], values }] };
      }
      case "first-token":
        return vector("embedding", normalized(values.slice(0, readRows(tensor.shape, values, task.name, 0))));
      case "embedding":
        readRows(tensor.shape, values, task.name);
        return vector("embedding", normalized(values));
      case "sentence":
        if (last.name === task.result) return vector("sentence_embedding", values);
        return vector("sentence_embedding", this.model.pooled(this.inputs.text ?? "", readRows(tensor.shape, values, task.name, 0), values, this.notices));
      default:
        throw new CotensorError("Unsupported", `${task.name}: this package does not run tasks with answers of type ${task.answer} yet`);
    }
  }

  /** The texts by their similarity to the image, or to the sound. */
  async #similarity(task: Task): Promise<{ answer: Answer; outputs: Output[] }> {
    const embeds = async (ofText: boolean): Promise<{ name: string; shape: readonly number[]; values: Float32Array }> => {
      const def = task.stages.map((role) => this.model.def(role)).find((each) => reads(each, "text") === ofText);
      const name = def?.outputs[0] ?? "";
      const value = def && this.#values.get(`${def.role}.${name}`);
      if (!value) throw new CotensorError("Invalid", `${task.name}: two embeddings are needed`);
      return { name, shape: value.shape, values: await this.numbers(value, `answer of ${task.name}`) };
    };
    const [one, all] = [await embeds(false), await embeds(true)];
    const width = readRows(one.shape, one.values, task.name);
    if (all.shape.length !== 2 || all.shape[1] !== width) {
      throw new CotensorError("Corrupt", `${task.name}: ${one.name} has ${width} dimensions, the embeddings of texts have shape [${all.shape.join(", ")}]`);
    }
    const direction = normalized(one.values);
    const names = this.inputs.texts ?? [this.inputs.text ?? ""];
    const cosines = Float32Array.from(names, (_, index) => dot(normalized(all.values.slice(index * width, (index + 1) * width)), direction));
    const { scale, bias, probability, notice } = await this.model.similarity();
    if (notice !== undefined) this.notices.push(notice);
    const logits = cosines.map((cosine) => cosine * scale + bias);
    const probabilities = probability === "sigmoid" ? sigmoid(logits) : softmax(logits);
    const texts = names.map((name, index): [string, number, number] => [name, cosines[index] ?? 0, probabilities[index] ?? 0]);
    return {
      answer: { type: "ranking", texts: texts.sort(([, a], [, b]) => b - a) },
      outputs: [
        { name: one.name, shape: [width], values: direction },
        { name: "cosine_similarity", shape: [cosines.length], values: cosines },
      ],
    };
  }
}

/** The output of a head: its logits, or its only output. */
function headOutput(outputs: readonly Port[], model: string): string {
  const names = outputs.map(({ name }) => name);
  const found = names.includes(LOGITS) ? LOGITS : names.length === 1 ? names[0] : undefined;
  if (found !== undefined) return found;
  throw new CotensorError("Unsupported", `${model}: a head gives ${LOGITS} or one output; this one gives ${names.join(", ")}`);
}

// One run of a task: the stages in order, each on the values that its description names.
import type { HostArray, Input, Port } from "../engine/api.js";
import { publishArray } from "../engine/results.js";
import { CotensorError } from "../errors.js";
import type { SharedTensor } from "../shared_tensor.js";
import { Tensor } from "../tensor.js";
import type { Kind } from "../types.js";
import type { Answer, Output } from "./answers.js";
import { ModelFamily, NamedNumbers, type AnswerRequest, type AnswerWithNumbers } from "./core.js";
import { isResult, LOGITS, reads, sourceOf, type StageDef, type Task } from "./definition.js";
import type { Inputs } from "./inputs.js";
import type { LoadedModel } from "./loaded_model.js";
import { sizeOf, type ImageSize, type TextArrays } from "./processors.js";
import type { AnswerOptions, CallOptions } from "./model.js";
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
    private readonly given: ReadonlyMap<string, SharedTensor>,
    /** Of the model, for its answers. */
    readonly options: AnswerOptions,
    /** Of the call. Its signal ends the run before the next stage, or before the next token. */
    readonly call: CallOptions,
  ) {}

  /** Runs the stages of the task, and reads the answer. */
  async answer(head: string | undefined): Promise<{ answer: Answer; outputs: Output[] }> {
    return this.#read(this.task, head, await this.#last(head));
  }

  /** The last output of the task for a text in `arrays`. What the stages made of it is released: other texts have other results. */
  async lastOutput(arrays: TextArrays, head: string | undefined): Promise<Output> {
    const kept = this.#leases.length;
    this.setTexts(arrays);
    try {
      const { tensor, name } = await this.#last(head);
      return { name, shape: tensor.shape, values: (await this.numbers(tensor, `answer of ${this.task.name}`)).slice() };
    } finally {
      this.#releaseFrom(kept);
    }
  }

  /** Runs the stages of the task. */
  async #last(head: string | undefined): Promise<{ tensor: Input; name: string }> {
    const { task } = this;
    const ownHead = head === undefined && (await this.model.hasOwnHead(task));
    let last: { tensor: Input; name: string } | undefined;
    for (const role of this.model.roles(task)) {
      const def = this.model.def(role);
      last = (await this.#given(def)) ?? (await this.#encode(def, task, ownHead));
    }
    if (!last) throw new CotensorError("Unsupported", `${task.name}: the task has no stages`);
    if (task.head && last.name !== LOGITS) last = await this.#head(last.tensor, task, head);
    if (ownHead) this.model.checkHead(task);
    return last;
  }

  /** The tensors that the stages made, by kind, as leases of the run's holder. */
  made(): Partial<Record<Kind, Tensor>> {
    const made: Partial<Record<Kind, Tensor>> = {};
    for (const def of this.model.stageDefs) {
      const value = def.outputs[0] === undefined ? undefined : this.#values.get(`${def.role}.${def.outputs[0]}`);
      if (value instanceof Tensor && def.kind !== "other") made[def.kind] = value.sameFor(this.holder);
    }
    return made;
  }

  /** A value that a stage made, or an input that a stage read. */
  known(source: string): Input | undefined {
    return this.#values.get(source);
  }

  /** Whether a tensor of another model replaces the result of a stage. */
  isGiven(role: string): boolean {
    return this.given.has(role);
  }

  /** Sets the length of a text that another model has read. */
  setTextLength(tokens: number): void {
    this.#values.set("text.mask", ones([1, tokens]));
  }

  /** Adds notices, each once. */
  note(...notices: readonly string[]): void {
    this.notices.push(...notices.filter((notice) => !this.notices.includes(notice)));
  }

  /** Gives the program a piece of a text. An aborted call has ended for the program. */
  give(piece: string): void {
    this.call.signal?.throwIfAborted();
    this.call.onText?.(piece);
  }

  /** Sets a text as the next input. */
  setTexts({ truncated: _, ...arrays }: TextArrays): void {
    for (const [name, value] of Object.entries(arrays)) this.#values.set(`text.${name}`, value);
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

  /** The inputs of a stage: the values that its description names, with those of a text if it is given. */
  async inputsOf(def: StageDef, stage: ModelStage, text?: TextArrays): Promise<Record<string, Input>> {
    this.call.signal?.throwIfAborted();
    if (text) this.setTexts(text);
    const inputs: Record<string, Input> = {};
    for (const port of stage.inputs) {
      const source = sourceOf(def, port.name);
      if (source === undefined) throw new CotensorError("Unsupported", `${this.model.name}: ${def.role}: nothing gives its input ${port.name}`);
      inputs[port.name] = await this.source(source, def, port);
    }
    return inputs;
  }

  /** Runs a stage on the values that its description names. */
  async runStage(def: StageDef, stage: ModelStage, outputs: readonly string[]): Promise<Tensor[]> {
    const inputs = await this.inputsOf(def, stage);
    const run = await stage.run(inputs, outputs, this.holder);
    this.#leases.push(...run.outputs);
    this.report(def.role, stage.space, run.computed, run.milliseconds);
    return run.outputs;
  }

  report(role: string, space: string | undefined, computed: boolean, milliseconds: number): void {
    this.stages.push({ role, space, computed, load_ms: this.model.takeLoadTime(role), run_ms: milliseconds });
  }

  /** Numbers that a loop of several runs makes, once for equal `extra`: what they depend on beside the graphs of `roles`. */
  async once<Numbers extends Uint32Array | Float32Array>(roles: readonly string[], label: string, extra: readonly string[], compute: () => Promise<Numbers>): Promise<Numbers> {
    const stages = await Promise.all(roles.map((role) => this.model.stage(role)));
    const spaces = stages.flatMap(({ space }) => space ?? []);
    const [stage] = stages;
    if (!stage || spaces.length < stages.length) return compute();
    const key = this.model.keyOnce(stage, label, [...spaces, ...extra]);
    const name = `${label}/${key}`;
    const start = performance.now();
    const claim = { key, names: [name], kind: this.model.def(roles[0] ?? "").kind, holder: this.holder };
    const { outputs, computed } = await this.model.backend.computations.once(claim, async () => {
      const data = (await compute()).slice();
      const output = { name, kind: claim.kind, cached: true };
      return publishArray(this.model.backend.store, this.holder, output, { data, shape: [data.length] }, performance.now() - start);
    });
    this.report(roles[0] ?? label, stage.space, computed, performance.now() - start);
    const [tensor] = outputs;
    if (!tensor) throw new CotensorError("Engine", `${label}: the store lost a result`);
    this.#leases.push(tensor);
    return tensor.array() as Numbers;
  }

  /** Releases what the stages made: the next part of an input has other results. */
  release(): void {
    this.#releaseFrom(0);
  }

  dispose(): void {
    this.release();
  }

  #releaseFrom(index: number): void {
    for (const lease of this.#leases.splice(index)) lease.dispose();
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

  async #encode(def: StageDef, task?: Task, ownHead = false): Promise<{ tensor: Input; name: string }> {
    const stage = await this.model.stage(def.role);
    const name = this.model.outputOf(stage, task, ownHead);
    const texts = reads(def, "text") && this.task.answer === "similarity" ? (this.inputs.texts ?? []) : [];
    if (task?.answer === "sentence") this.#setTask(def, stage);
    // The stage gives its other outputs in the same run.
    const names = isResult(def, name) ? [name, ...def.outputs.slice(1)] : [name];
    const tensors = texts.length > 0 ? [await this.#encodeEach(def, stage, name, texts)] : await this.runStage(def, stage, names);
    const [tensor] = tensors;
    if (!tensor) throw new CotensorError("Engine", `${this.model.name}: ${def.role} gave no ${name}`);
    if (isResult(def, name)) tensors.forEach((each, index) => this.#values.set(`${def.role}.${def.outputs[index] ?? name}`, each));
    return { tensor, name };
  }

  /** Each text by itself: models with different lists of texts share the results of equal texts, and no text is padded. */
  async #encodeEach(def: StageDef, stage: ModelStage, output: string, texts: readonly string[]): Promise<HostArray> {
    const rows: Float32Array[] = [];
    for (const [index, text] of texts.entries()) {
      this.#setTokens(text, def, `texts[${index}]`);
      const [row] = await this.runStage(def, stage, [output]);
      if (row) rows.push(await this.numbers(row, "compare texts with another embedding"));
    }
    const width = rows[0]?.length ?? 0;
    const data = new Float32Array(width * rows.length);
    rows.forEach((row, index) => data.set(row, index * width));
    return { data, shape: [rows.length, width] };
  }

  /** The value that a source names, for an input of a graph. Inputs are prepared when a stage first reads them. */
  async source(source: string, def: StageDef, port: Port): Promise<Input> {
    const known = this.#values.get(source);
    if (known) return known;
    if (source === "image.mask") return this.model.processors.mask(this.#imageSize(def), port);
    // The logits after the last token alone.
    if (source === "text.logits") return ones(port.shape.length === 0 ? [] : [1]);
    if (source === "cache.empty") return this.model.processors.emptyCache(port);
    // The features of one sound are not padded.
    if (source === "audio.mask") return ones((await this.source("audio.features", def, port)).shape);
    const [medium] = source.split(".");
    if (medium === "image" || medium === "audio") {
      await this.model.prepare(medium, this);
    } else if (medium === "text") {
      const isListed = this.inputs.text === undefined;
      const [text] = isListed ? (this.inputs.texts ?? []) : [this.inputs.text];
      if (text === undefined) throw new CotensorError("Invalid", `text: ${def.role} of ${this.model.name} reads a text`);
      this.#setTokens(text, def, isListed ? "texts[0]" : "text");
    }
    const value = this.#values.get(source);
    if (value) return value;
    throw new CotensorError("Unsupported", `${this.model.name}: ${def.role} needs ${source}, which nothing gives`);
  }

  #imageSize(def: StageDef): ImageSize {
    if (this.inputs.image) return sizeOf(this.inputs.image);
    throw new CotensorError("Invalid", `image: ${def.role} of ${this.model.name} reads an image`);
  }

  /** Sets a text, which is the input `field`, as the next input. */
  #setTokens(text: string, def: StageDef, field: string): void {
    const arrays = this.model.encodeText(text, def, this.task, this.options.promptName);
    this.setTexts(arrays);
    if (arrays.truncated) this.note(`${field}: truncated to ${arrays.ids.shape[1] ?? 0} tokens`);
  }

  /** The number of the task of the prompt, for a graph that reads it. */
  #setTask(def: StageDef, { inputs }: ModelStage): void {
    const port = inputs.find(({ name }) => sourceOf(def, name) === "text.task");
    const number = this.model.processors.sentence.task(this.options.promptName, port !== undefined);
    if (port && number !== undefined) this.#values.set("text.task", this.model.processors.taskInput(port, number, 1));
  }

  async #head(trunk: Input, task: Task, name: string | undefined): Promise<{ tensor: Input; name: string }> {
    const stage = await this.model.head(name, task);
    const [input, ...others] = stage.inputs;
    if (!input || others.length > 0) throw new CotensorError("Unsupported", `${this.model.name}: a head has exactly one input`);
    const output = ModelFamily.headOutput(stage.role, stage.outputs.map((each) => each.name));
    const run = await stage.run({ [input.name]: trunk }, [output], this.holder);
    this.#leases.push(...run.outputs);
    this.report(stage.role, stage.space, run.computed, run.milliseconds);
    const [tensor] = run.outputs;
    if (!tensor) throw new CotensorError("Engine", `${this.model.name}: the head gave no ${output}`);
    return { tensor, name: LOGITS };
  }

  /** Reads the answer from the last output, or from those of several stages. */
  async #read(task: Task, head: string | undefined, last: { tensor: Input; name: string }): Promise<{ answer: Answer; outputs: Output[] }> {
    const { model, inputs } = this;
    const reader = await model.answers(task);
    const read = reader.reads(task.name).map((source) => {
      const tensor = this.#values.get(source);
      if (!tensor) throw new CotensorError("Invalid", `${task.name} needs ${source}, which no stage made`);
      return { tensor, name: source.slice(source.indexOf(".") + 1) };
    });
    const numbers = await Promise.all((read.length > 0 ? read : [last]).map(async ({ tensor, name }) => ({ name, shape: tensor.shape, values: await this.numbers(tensor, `answer of ${task.name}`) })));
    const request: AnswerRequest = {
      task: task.name,
      head: head ?? null,
      texts: task.answer === "similarity" ? (inputs.texts ?? []).map(wellFormed) : [],
      threshold: this.options.threshold ?? null,
      image_size: inputs.image && task.answer === "objects" ? sizeOf(inputs.image) : null,
      prompt_tokens: task.answer === "sentence" ? model.processors.promptTokens(this.options.promptName) : 0,
    };
    // The model may have been disposed while numbers were read.
    model.check();
    const tokens = inputs.text === undefined ? undefined : model.processors.answerTokens(inputs.text, task, this.options.promptName);
    const outputs = numbers.map(({ name, shape, values }) => new NamedNumbers(name, Uint32Array.from(shape), values));
    return answered(reader.answer(JSON.stringify(request), outputs, tokens), this.notices);
  }
}

/** An answer of the module, which is freed. Its notices are added to `notices`. */
export function answered(given: AnswerWithNumbers, notices: string[]): { answer: Answer; outputs: Output[] } {
  try {
    notices.push(...given.notices);
    return { answer: JSON.parse(given.answer) as Answer, outputs: given.outputs().map(taken) };
  } finally {
    given.free();
  }
}

/** The numbers behind an answer, which are freed in the module. */
function taken(numbers: NamedNumbers): Output {
  try {
    return { name: numbers.name, shape: [...numbers.shape], values: numbers.values };
  } finally {
    numbers.free();
  }
}

/** A text as Rust reads it: half of a surrogate pair is no character. */
export function wellFormed(text: string): string {
  return text.replace(/\p{Surrogate}/gu, "\ufffd");
}

function ones(shape: readonly number[]): HostArray {
  return { data: new BigInt64Array(shape.reduce((count, dimension) => count * dimension, 1)).fill(1n), shape, dtype: "int64" };
}

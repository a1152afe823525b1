// Sentence embeddings of many texts: texts of similar length run together, and each embedding is computed once.
import type { Input, Port, RunResult } from "../engine/api.js";
import { publishArray } from "../engine/results.js";
import { CotensorError } from "../errors.js";
import type { Tensor } from "../tensor.js";
import type { Answer, Output } from "./answers.js";
import { hashes, runLength } from "./core.js";
import { fixedLength, sourceOf, type StageDef } from "./definition.js";
import type { Run } from "./run.js";
import type { ModelStage } from "./stages.js";
import type { TokenRows } from "./token_rows.js";

/** The texts that are tokenized at a time. */
const TEXTS_AT_ONCE = 256;
const LABEL = "sentence embedding";

/** A text whose embedding is to be computed. */
interface Missing {
  readonly row: number;
  readonly resolve: (embedding: Float32Array<ArrayBuffer>) => void;
  readonly reject: (error: unknown) => void;
}

/** The embedding of each text of a run. */
export async function embedTexts(run: Run): Promise<{ answer: Answer; outputs: Output[] }> {
  const { model, task } = run;
  const texts = run.inputs.texts ?? [];
  const [role = ""] = model.roles(task);
  const embedder = await Embedder.open(run, role);
  const rows: Float32Array[] = [];
  const start = performance.now();
  for (let from = 0; from < texts.length; from += TEXTS_AT_ONCE) rows.push(...(await embedder.embed(texts.slice(from, from + TEXTS_AT_ONCE), from)));
  run.report(role, embedder.stage.space, embedder.computed > 0, performance.now() - start);
  const width = rows[0]?.length ?? 0;
  const values = new Float32Array(width * rows.length);
  rows.forEach((row, index) => values.set(row, index * width));
  return { answer: { type: "embedding", width }, outputs: [{ name: "sentence_embedding", shape: [rows.length, width], values }] };
}

class Embedder {
  /** Embeddings that were computed here. */
  computed = 0;
  /** Why a run failed. The other texts of this call are not run then. */
  #failure: { readonly error: unknown } | undefined;

  private constructor(
    private readonly run: Run,
    private readonly def: StageDef,
    readonly stage: ModelStage,
    private readonly output: string,
    /** The number of tokens that the graph reads, if it is fixed. */
    private readonly length: number | undefined,
    /** Whether each text runs alone, because a run of several would give it other numbers. */
    private readonly runsAlone: boolean,
    /** The number of the prompt's task, for a graph that reads it. */
    private readonly task: number | undefined,
  ) {}

  static async open(run: Run, role: string): Promise<Embedder> {
    const { model, task } = run;
    const [def, stage] = [model.def(role), await model.stage(role)];
    const [rows] = stage.inputs.find(({ name }) => sourceOf(def, name) === "text.ids")?.shape ?? [];
    const tokens = fixedLength(def, stage.inputs);
    const filled = def.fills_texts ? model.text.maxTokens : undefined;
    const names = stage.inputs.map(({ name }) => name);
    const missing = Object.keys(def.inputs).find((name) => !names.includes(name));
    if (missing !== undefined) throw new CotensorError("Unsupported", `${model.name}: the graph has no input ${missing}; export the model with it`);
    // Without a mask, a text may depend on the padding of its row.
    const hasInput = (source: string): boolean => names.some((name) => sourceOf(def, name) === source);
    const isMasked = hasInput("text.mask");
    if (!isMasked && tokens !== undefined) throw new CotensorError("Unsupported", `${model.name}: the graph reads texts of one length without a mask of their tokens; export the model with a mask`);
    const runsAlone = typeof rows === "number" || !isMasked || hasInput("cache.empty") || (await model.joinsRows(role));
    const number = model.processors.sentence.task(run.options.promptName, hasInput("text.task"));
    const { notice } = model.processors.sentence;
    if (notice !== undefined) run.notices.push(notice);
    return new Embedder(run, def, stage, model.outputOf(stage, task), tokens ?? filled, runsAlone, number);
  }

  /** Whether the graph gives embeddings, and not a row for each token. */
  get #isPooled(): boolean {
    return this.output === this.run.task.result;
  }

  /** The embeddings of texts. `first` is the number of the first one, for notices. */
  async embed(texts: readonly string[], first: number): Promise<Float32Array[]> {
    const { run } = this;
    const tokens = run.model.processors.sentenceTokens(texts, run.options.promptName, this.length);
    tokens.truncated.forEach((truncated, row) => {
      if (truncated) run.notices.push(`text ${first + row}: truncated to ${tokens.counts[row] ?? 0} tokens`);
    });
    const missing: Missing[] = [];
    let isComplete = false;
    const compute = (row: number): Promise<Float32Array<ArrayBuffer>> =>
      isComplete ? this.#alone(tokens, row) : new Promise((resolve, reject) => missing.push({ row, resolve, reject }));
    // Each runs until its first wait, so that the list is complete below.
    const embeddings = texts.map((_, row) => this.#once(tokens, row, () => compute(row)));
    isComplete = true;
    const settled = Promise.allSettled(embeddings);
    await this.#compute(tokens, missing);
    // Also after a failure: no text of this call runs once the call has ended.
    await settled;
    return Promise.all(embeddings);
  }

  /** The embedding of a text that waited for another caller, whose computation failed or whose result stayed private. */
  async #alone(tokens: TokenRows, row: number): Promise<Float32Array<ArrayBuffer>> {
    const [embedding] = await this.#together(tokens, [row]);
    return embedding as Float32Array<ArrayBuffer>;
  }

  /** The embedding of a text: that of the store, that which another caller computes, or a new one. */
  async #once(tokens: TokenRows, row: number, compute: () => Promise<Float32Array<ArrayBuffer>>): Promise<Float32Array> {
    const { run, stage, def } = this;
    const { model, holder } = run;
    const { store, computations } = model.backend;
    if (stage.space === undefined) return compute();
    const read = BigInt64Array.from([BigInt(this.#promptTokens), BigInt(this.task ?? -1), ...tokens.ids(row)]);
    const identity = hashes.identity("int64", [read.length], new Uint8Array(read.buffer));
    const key = model.keyOnce(stage, LABEL, [stage.space, model.processors.sentence.fingerprint(this.#isPooled), identity]);
    const name = `${def.role}.${LABEL.replace(" ", "_")}/${key}`;
    const { outputs } = await computations.once({ key, names: [name], kind: def.kind, holder }, async (): Promise<RunResult> => {
      const start = performance.now();
      const data = await compute();
      return publishArray(store, holder, { name, kind: def.kind, cached: true }, { data, shape: [data.length] }, performance.now() - start);
    });
    try {
      return (outputs[0] as Tensor).array().slice() as Float32Array;
    } finally {
      for (const tensor of outputs) tensor.dispose();
    }
  }

  /** Computes embeddings in as few runs as memory and padding allow. */
  async #compute(tokens: TokenRows, missing: readonly Missing[]): Promise<void> {
    const count = ({ row }: Missing): number => tokens.counts[row] ?? 0;
    let rest = [...missing].sort((a, b) => count(a) - count(b));
    try {
      while (rest.length > 0) {
        const together = rest.slice(0, this.runsAlone ? 1 : runLength(Uint32Array.from(rest, count), this.length));
        const embeddings = await this.#together(tokens, together.map(({ row }) => row));
        together.forEach(({ resolve }, index) => resolve(embeddings[index] as Float32Array<ArrayBuffer>));
        rest = rest.slice(together.length);
      }
    } catch (error) {
      for (const { reject } of rest) reject(error);
    }
  }

  /** The embeddings of texts in one run. */
  async #together(tokens: TokenRows, rows: readonly number[]): Promise<Float32Array[]> {
    if (this.#failure) throw this.#failure.error;
    try {
      this.run.call.signal?.throwIfAborted();
      const embeddings = await this.#run(tokens, rows);
      this.computed += rows.length;
      return embeddings;
    } catch (error) {
      this.#failure ??= { error };
      throw error;
    }
  }

  async #run(tokens: TokenRows, rows: readonly number[]): Promise<Float32Array[]> {
    const { run, stage, def, output } = this;
    const inputs: Record<string, Input> = {};
    for (const port of stage.inputs) {
      const { name } = port;
      const source = sourceOf(def, name);
      const input = source === undefined ? undefined : (this.#inputOf(source, port, rows) ?? tokens.input(source, rows));
      if (!input) throw new CotensorError("Unsupported", `${run.model.name}: ${def.role}: no text gives its input ${name}`);
      inputs[name] = input;
    }
    const [tensor] = await stage.runAlone(inputs, [output], run.holder);
    if (!tensor) throw new CotensorError("Engine", `${run.model.name}: ${def.role} gave no ${output}`);
    try {
      const count = tokens.width(rows);
      const [batch, found, last] = tensor.shape;
      const width = (this.#isPooled ? found : last) ?? 0;
      if (batch !== rows.length || tensor.shape.length !== (this.#isPooled ? 2 : 3) || (!this.#isPooled && found !== count) || width === 0) {
        throw new CotensorError("Unsupported", `${run.model.name}: ${output} has shape [${tensor.shape.join(", ")}] for ${rows.length} texts of ${count} tokens`);
      }
      const values = await run.numbers(tensor, `answer of ${run.task.name}`);
      const size = values.length / rows.length;
      return rows.map((row, index) => this.#embedding(values.subarray(index * size, (index + 1) * size), width, tokens.mask(row, count)));
    } finally {
      tensor.dispose();
    }
  }

  /** An input that does not come from the tokens. */
  #inputOf(source: string, port: Port, rows: readonly number[]): Input | undefined {
    const { model } = this.run;
    if (source === "text.task" && this.task !== undefined) return model.processors.taskInput(port, this.task, rows.length);
    return source === "cache.empty" ? model.processors.emptyCache(port) : undefined;
  }

  get #promptTokens(): number {
    return this.run.model.processors.promptTokens(this.run.options.promptName);
  }

  #embedding(rows: Float32Array, width: number, mask: Uint8Array): Float32Array {
    const { processors } = this.run.model;
    const embedding = this.#isPooled ? processors.truncated(rows) : processors.pool(rows, width, mask, this.#promptTokens);
    if (embedding.every(Number.isFinite)) return embedding;
    throw new CotensorError("Engine", `${this.run.task.name}: the output has a number that is not finite`);
  }
}

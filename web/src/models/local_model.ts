// A model in the page: `loaded_model.ts` has its files and stages, `run.ts` the values of one run, `stage/` what is computed once, `engine/`
// onnxruntime-web. `writing.ts` runs the tasks of decoders. Answers are read by the second module (web/models/src/answers.rs).
import { CotensorError } from "../errors.js";
import { SharedTensor } from "../shared_tensor.js";
import type { SharedTensorConfig } from "../store.js";
import type { Device, Kind } from "../types.js";
import type { Answer, Output } from "./answers.js";
import type { Task } from "./definition.js";
import { embedTexts } from "./embedding.js";
import type { ModelHost } from "./host.js";
import { checkTokens, mediaOf, readInputs, type Inputs, type ModelInput, type Tokens } from "./inputs.js";
import type { LoadedModel } from "./loaded_model.js";
import { unlessAborted } from "./abort.js";
import { HeldTensors, type CallOptions, type FamilyModel, type ModelOptions, type SharedTensors } from "./model.js";
import { rerank } from "./rerank.js";
import { Result } from "./result.js";
import { Run, wellFormed } from "./run.js";
import { userOf, write } from "./writing.js";

/** A backend that opens models, and shares each between its users. */
export interface ModelBackend extends ModelHost {
  readonly device: Device;
  /** Throws once it was disposed. */
  check(): void;
  /** Sets which tensors are shared, before the store exists. */
  configure(config: SharedTensorConfig): void;
  openModel(modelId: string, options: ModelOptions): Promise<LoadedModel>;
  /** Ends one use of a model. */
  releaseModel(model: LoadedModel | undefined): Promise<void>;
}

/** A model in this thread. */
export class LocalModel implements FamilyModel {
  readonly modelId: string;
  readonly #held: HeldTensors;
  readonly #holder: string;
  #loading: Promise<LoadedModel> | undefined;
  #loaded: LoadedModel | undefined;
  #isDisposed = false;

  constructor(
    readonly backend: ModelBackend,
    private readonly options: ModelOptions,
    /** The family that the program expects. */
    private readonly expected: string | undefined,
    /** The holder of the model's tensors; its name by default. */
    holder: string = options.modelId,
  ) {
    if (typeof options.modelId !== "string" || options.modelId === "") {
      throw new CotensorError("Invalid", "modelId: the name of a model, or the path of a folder, is required");
    }
    if (options.sharedTensorConfig) backend.configure(options.sharedTensorConfig);
    this.modelId = options.modelId;
    this.#held = new HeldTensors(holder);
    this.#holder = holder;
  }

  get family(): string {
    if (this.#loaded) return this.#loaded.family;
    throw new CotensorError("Conflict", `${this.modelId}: await initialize() first`);
  }

  get device(): Device {
    return this.backend.device;
  }

  get isDisposed(): boolean {
    return this.#isDisposed;
  }

  /** Whether it is of a type: a family, a `model_type`, a kind of its tensors, or the beginning of a kind such as `vision`. */
  isOfType(type: string): boolean {
    return this.#loaded?.isOfType(type) ?? false;
  }

  /** The names of its tasks. */
  get tasks(): string[] {
    if (this.#loaded) return this.#loaded.tasks.map(({ name }) => name);
    throw new CotensorError("Conflict", `${this.modelId}: await initialize() first`);
  }

  initialize({ signal }: CallOptions = {}): Promise<void> {
    return unlessAborted(signal, () => this.#initialize());
  }

  async #initialize(): Promise<void> {
    const loaded = await this.#open();
    const tasks = this.options.task === undefined ? loaded.tasks.filter(({ head }) => !head) : [loaded.task(this.options.task)];
    await loaded.load(tasks.length > 0 ? tasks : loaded.tasks);
  }

  tokenize(text: string, { signal }: CallOptions = {}): Promise<Tokens> {
    return unlessAborted(signal, async () => (await this.#open()).tokens(text));
  }

  tokenizeText(text: string, options?: CallOptions): Promise<Tokens> {
    return this.tokenize(text, options);
  }

  process(input: ModelInput, call: CallOptions = {}): Promise<Result> {
    return unlessAborted(call.signal, async () => this.run(await readInputs(input), [], call, same));
  }

  processWithSharedEmbedding(input: ModelInput, tensor: SharedTensor, options?: CallOptions): Promise<Result> {
    return this.processWithSharedEmbeddings([tensor], input, options);
  }

  processWithSharedEmbeddings(tensors: SharedTensors, input?: ModelInput, call: CallOptions = {}): Promise<Result> {
    const read = async (): Promise<Inputs> => (input === undefined ? {} : readInputs(input));
    return unlessAborted(call.signal, async () => this.run(await read(), Object.values(tensors) as SharedTensor[], call, same));
  }

  getSharedTensor(kind: Kind): SharedTensor {
    return this.#held.made(kind);
  }

  useSharedTensor(tensor: SharedTensor): void {
    this.#held.acquire(tensor);
  }

  releaseSharedTensor(tensor: SharedTensor): void {
    this.#held.release(tensor);
  }

  async dispose(): Promise<void> {
    if (this.#isDisposed) return;
    this.#isDisposed = true;
    this.#held.releaseAll();
    const loading = this.#loading;
    if (loading) await this.backend.releaseModel(await loading.catch(() => undefined));
  }

  #open(): Promise<LoadedModel> {
    if (this.#isDisposed) throw new CotensorError("Conflict", `${this.modelId}: the model was disposed; create it again`);
    this.backend.check();
    this.#loading ??= this.#load().catch((error: unknown) => {
      // The next call tries again.
      this.#loading = undefined;
      throw error;
    });
    return this.#loading;
  }

  async #load(): Promise<LoadedModel> {
    const loaded = await this.backend.openModel(this.modelId, this.options);
    if (this.expected !== undefined && loaded.family !== this.expected) {
      await this.backend.releaseModel(loaded);
      throw new CotensorError("Invalid", `modelId: ${this.modelId} is a model of the family ${loaded.family}, not ${this.expected}`);
    }
    this.#loaded = loaded;
    return loaded;
  }

  /**
   * Runs the task on inputs in one form, with tensors of other models. `taken` makes what the caller gets of the result, at once: a later
   * call releases the model's leases of these tensors, also before the caller goes on.
   */
  async run<Taken>(inputs: Inputs, tensors: readonly SharedTensor[], call: CallOptions, taken: (result: Result) => Taken): Promise<Taken> {
    const loaded = await this.#open();
    if (inputs.tokens) checkTokens(inputs.tokens, loaded.tokens(inputs.tokens.text));
    const given = await loaded.replacedBy(tensors);
    const media = new Set([...mediaOf(inputs), ...[...given.keys()].map((role) => loaded.mediumOf(role))]);
    const hasPairs = inputs.text !== undefined && inputs.texts !== undefined;
    const task = this.options.task === undefined ? loaded.defaultTask([...media], hasPairs) : loaded.task(this.options.task);
    const embeds = inputs.texts !== undefined && task.answer === "sentence" && tensors.length === 0;
    const isScored = task.answer === "scores";
    if (inputs.texts !== undefined && task.answer !== "similarity" && !isScored && !embeds) {
      throw new CotensorError("Invalid", `texts: ${task.name} of ${this.modelId} reads one text; process each by itself as \`text\`. Texts are embedded, scored beside a text, or compared with an image or a sound`);
    }
    if (isScored && tensors.length > 0) throw new CotensorError("Invalid", `tensors: ${task.name} of ${this.modelId} reads pairs of texts, which no other encoder has`);
    const { modelId, task: _, variant, useOptimizedOps, sharedTensorConfig, ...options } = this.options;
    loaded.checkOptions(userOf(modelId, task, options, isScored ? inputs.texts?.map(wellFormed) : []));
    if (call.onText && task.answer !== "text" && task.answer !== "transcript") throw new CotensorError("Invalid", `onText: ${task.name} of ${this.modelId} decodes no text`);
    const run = new Run(loaded, this.#holder, withTexts(inputs, task, loaded), task, given, options, call);
    try {
      for (const medium of mediaOf(inputs)) {
        if (!loaded.reads(task, medium) && !(medium === "text" && task.begins)) run.notices.push(`${task.name} reads no ${medium}`);
      }
      const { answer, outputs } = await answerOf(run, embeds, options.head);
      // An aborted call leaves the tensors of the last input.
      call.signal?.throwIfAborted();
      if (this.#isDisposed) throw new CotensorError("Conflict", `${this.modelId}: the model was disposed while it ran`);
      const made: Partial<Record<Kind, SharedTensor>> = {};
      for (const [kind, tensor] of Object.entries(run.made())) made[kind as Kind] = new SharedTensor(this.backend.store, tensor);
      this.#held.setMade(made);
      return taken(new Result(this.modelId, task.name, answer, outputs, made, run.stages, run.notices));
    } finally {
      run.dispose();
    }
  }
}

const same = (result: Result): Result => result;

function answerOf(run: Run, embeds: boolean, head: string | undefined): Promise<{ answer: Answer; outputs: Output[] }> {
  switch (run.task.answer) {
    case "transcript":
    case "language":
    case "text":
      return write(run);
    case "scores":
      return rerank(run, head);
    default:
      return embeds ? embedTexts(run) : run.answer(head);
  }
}

/** Tasks that compare texts take the input text as the only one. An encoder of a text that is written anew reads the task's prefix, too. */
function withTexts(inputs: Inputs, task: Task, model: LoadedModel): Inputs {
  const { text } = inputs;
  if (text === undefined) return inputs;
  if (task.answer === "similarity" && inputs.texts === undefined) return { ...inputs, texts: [text] };
  return task.answer === "text" && !task.begins ? { ...inputs, text: model.generation(task.name).prefix + text } : inputs;
}

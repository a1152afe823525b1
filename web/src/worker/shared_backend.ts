// Models that run in the worker of all tabs: one loaded copy for the site.
import { absoluteUrl } from "../addresses.js";
import { CotensorError } from "../errors.js";
import type { ModelAnswer, ResultAnswer } from "./model_handlers.js";
import type { SharedHandle } from "./shared_handle.js";
import type { SharedStore } from "./shared_store.js";
import type { Device, Kind } from "../types.js";
import type { ModelSources } from "../models/folder.js";
import { readInputs, type Inputs, type ModelInput, type Tokens } from "../models/inputs.js";
import { unlessAborted } from "../models/abort.js";
import type { CallOptions, ModelOptions } from "../models/model.js";
import { Result } from "../models/result.js";

/** Options of a shared backend. */
export interface SharedBackendOptions extends ModelSources {
  /** The devices, the best first; by default WebGPU, then the CPU. */
  readonly priorityList?: readonly Device[];
}

/** The models of the worker behind a shared store. */
export class SharedBackend {
  readonly #devices: readonly Device[];
  readonly #sources: ModelSources;

  constructor(
    readonly store: SharedStore,
    { priorityList = ["webgpu", "cpu"], ...sources }: SharedBackendOptions = {},
  ) {
    this.#devices = priorityList;
    const { models, endpoint } = sources;
    this.#sources = {
      ...sources,
      ...(models === undefined ? {} : { models: absoluteUrl("models", models).href }),
      ...(endpoint === undefined ? {} : { endpoint: absoluteUrl("endpoint", endpoint).href }),
    };
  }

  createModel(family: string | undefined, options: ModelOptions): SharedModel {
    return new SharedModel(this.store, { family, options, devices: this.#devices, sources: this.#sources });
  }
}

/** Whether the name of a model is a path relative to the page. */
function isPath(modelId: unknown): modelId is string {
  return typeof modelId === "string" && /^\.{0,2}\//.test(modelId);
}

/** A model in the worker. Its tensors stay there; handles name them. */
export class SharedModel {
  readonly modelId: string;
  #created: Promise<ModelAnswer> | undefined;
  #answer: ModelAnswer | undefined;
  #family: string | undefined;
  #made: Partial<Record<Kind, SharedHandle>> = {};
  readonly #used: { tensor: SharedHandle; lease: Promise<SharedHandle> }[] = [];
  #isDisposed = false;
  readonly #request: object;

  constructor(
    private readonly store: SharedStore,
    { options, ...request }: { readonly options: ModelOptions } & Record<string, unknown>,
  ) {
    const { modelId } = options;
    this.modelId = modelId;
    this.#request = { ...request, name: modelId, options: isPath(modelId) ? { ...options, modelId: absoluteUrl("modelId", modelId).href } : options };
  }

  /** The device that it runs on; known once it is initialized. */
  get device(): Device {
    return this.#known().device;
  }

  /** The preferred devices that are not available, each with the reason. */
  get skipped(): Readonly<Record<string, string>> {
    return this.#known().skipped;
  }

  get family(): string {
    if (this.#family !== undefined) return this.#family;
    throw new CotensorError("Conflict", `${this.modelId}: await initialize() first`);
  }

  initialize({ signal }: CallOptions = {}): Promise<void> {
    return unlessAborted(signal, async () => {
      const { family } = await this.#call<{ family: string }>("model.initialize", {});
      this.#family = family;
    });
  }

  tokenize(text: string, { signal }: CallOptions = {}): Promise<Tokens> {
    return unlessAborted(signal, () => this.#call("model.tokenize", { text }));
  }

  tokenizeText(text: string, options?: CallOptions): Promise<Tokens> {
    return this.tokenize(text, options);
  }

  process(input: ModelInput, call: CallOptions = {}): Promise<Result<SharedHandle>> {
    return unlessAborted(call.signal, async () => this.#run(await readInputs(input), [], call));
  }

  processWithSharedEmbedding(input: ModelInput, tensor: SharedHandle, options?: CallOptions): Promise<Result<SharedHandle>> {
    return this.processWithSharedEmbeddings([tensor], input, options);
  }

  processWithSharedEmbeddings(
    tensors: Readonly<Record<string, SharedHandle>> | readonly SharedHandle[],
    input?: ModelInput,
    call: CallOptions = {},
  ): Promise<Result<SharedHandle>> {
    const read = async (): Promise<Inputs> => (input === undefined ? {} : readInputs(input));
    return unlessAborted(call.signal, async () => this.#run(await read(), Object.values(tensors) as SharedHandle[], call));
  }

  /** The tensor of a kind that the model made of its last input. */
  getSharedTensor(kind: Kind): SharedHandle {
    const found = this.#made[kind];
    if (found) return found;
    const known = Object.keys(this.#made).join(", ") || "none: process an input first";
    throw new CotensorError("NotFound", `kind ${JSON.stringify(kind)}: ${this.modelId} made no such tensor of its last input; it made ${known}`);
  }

  /** Acquires a tensor once for this model. */
  useSharedTensor(tensor: SharedHandle): void {
    const lease = tensor.leaseFor(this.modelId);
    // A failure shows when it is released.
    lease.catch(() => undefined);
    this.#used.push({ tensor, lease });
  }

  /** Releases one acquire of this model. */
  releaseSharedTensor(tensor: SharedHandle): void {
    const index = this.#used.findLastIndex((each) => each.tensor === tensor);
    const [found] = index < 0 ? [] : this.#used.splice(index, 1);
    if (!found) throw new CotensorError("Conflict", `${tensor.name} is not held by ${JSON.stringify(this.modelId)}`);
    void found.lease.then((lease) => lease.dispose());
  }

  /** Releases the model and its tensors. The worker keeps the graphs while other tabs use them. */
  async dispose(): Promise<void> {
    if (this.#isDisposed) return;
    this.#isDisposed = true;
    this.#setMade({});
    for (const { lease } of this.#used.splice(0)) void lease.then((each) => each.dispose()).catch(() => undefined);
    const created = await this.#created?.catch(() => undefined);
    if (created) await this.store.connection.call("model.release", { handle: created.handle });
  }

  async #run(inputs: Inputs, tensors: readonly SharedHandle[], { signal, onText }: CallOptions): Promise<Result<SharedHandle>> {
    const call = new SharedCall(signal, onText);
    const handles = tensors.map(({ handle }) => handle);
    const { task, answer, outputs, stages, notices, tensors: made } = await call.run(() =>
      this.#called((handle) => this.store.connection.cancellable<ResultAnswer>("model.process", { handle, inputs, tensors: handles }, call.signal, call.onText)),
    );
    const adopted = Object.fromEntries(Object.entries(made).map(([kind, each]) => [kind, this.store.adopt(each)]));
    if (call.signal.aborted || this.#isDisposed) {
      for (const tensor of Object.values(adopted)) tensor.dispose();
      call.signal.throwIfAborted();
      throw new CotensorError("Conflict", `${this.modelId}: the model was disposed while it ran`);
    }
    this.#setMade(adopted);
    return new Result(this.modelId, task, answer, outputs, adopted, stages, notices);
  }

  #setMade(tensors: Partial<Record<Kind, SharedHandle>>): void {
    for (const tensor of Object.values(this.#made)) tensor.dispose();
    this.#made = tensors;
  }

  #call<Value>(method: string, params: object): Promise<Value> {
    return this.#called((handle) => this.store.connection.call<Value>(method, { handle, ...params }));
  }

  /** Creates the model, once, and calls it by its handle. */
  async #called<Value>(call: (handle: number) => Promise<Value>): Promise<Value> {
    if (this.#isDisposed) throw new CotensorError("Conflict", `${this.modelId}: the model was disposed; create it again`);
    this.#created ??= this.store.connection.call<ModelAnswer>("model.create", this.#request).catch((error: unknown) => {
      // The next call tries again.
      this.#created = undefined;
      throw error;
    });
    this.#answer = await this.#created;
    return call(this.#answer.handle);
  }

  #known(): ModelAnswer {
    if (this.#answer) return this.#answer;
    throw new CotensorError("Conflict", `${this.modelId}: await initialize() first`);
  }
}

/** A call that its program may end: by its signal, or by an error of `onText`. */
class SharedCall {
  readonly #ended = new AbortController();

  constructor(
    private readonly given: AbortSignal | undefined,
    private readonly give: ((piece: string) => void) | undefined,
  ) {}

  get signal(): AbortSignal {
    return this.#ended.signal;
  }

  /** Gives the program a piece of a text, unless the call has ended. */
  get onText(): ((piece: string) => void) | undefined {
    const { give } = this;
    if (!give) return undefined;
    return (piece) => {
      if (this.signal.aborted) return;
      try {
        give(piece);
      } catch (error) {
        this.#ended.abort(error);
      }
    };
  }

  /** The result of the call, or the reason why the program ended it. */
  async run<Value>(work: () => Promise<Value>): Promise<Value> {
    const end = (): void => this.#ended.abort(this.given?.reason);
    this.given?.throwIfAborted();
    this.given?.addEventListener("abort", end);
    try {
      return await work();
    } catch (error) {
      this.signal.throwIfAborted();
      throw error;
    } finally {
      this.given?.removeEventListener("abort", end);
    }
  }
}

// The resource pool of docs/reference/api-names.md: models by type and name, with bounded concurrency and a list of preferred devices.
import { CotensorError } from "../errors.js";
import { TensorSharingManager } from "../manager.js";
import { SharedTensor } from "../shared_tensor.js";
import { Tensor } from "../tensor.js";
import type { Device, TypedArray } from "../types.js";
import { Backend, type BackendOptions } from "./backend.js";
import type { ModelInput } from "./inputs.js";
import { unlessAborted } from "./abort.js";
import type { LocalModel } from "./local_model.js";
import type { CallOptions, FamilyModel } from "./model.js";
import { chooseGraphs, REPORT_FILE, type HardwarePreferences, type QuantizationReport } from "./precision.js";
import type { Result } from "./result.js";

/** The devices of the pool's store. */
const FIRST: readonly Device[] = ["webgpu", "cpu"];

/** A model of a pool, as a function. */
export interface PooledModel {
  (input: ModelInput, options?: CallOptions): Promise<Result>;
  readonly model: FamilyModel;
  readonly device: Device;
  /** The preferred devices that are not available, each with the reason. */
  readonly skipped: Readonly<Record<string, string>>;
  /** How its weights were quantized, if a precision of `cotensor quantize` was asked for. */
  readonly quantization: QuantizationReport | undefined;
}

/** A tensor to share between models. */
export interface SharedBetweenModels {
  readonly tensorData: SharedTensor | Tensor | TypedArray;
  readonly tensorName: string;
  readonly producerModel: string;
  readonly consumerModels: readonly string[];
  /** The host by default. A preference: without the device, the tensor is on the host. */
  readonly storageType?: Device;
  /** Of `tensorData`, if it is an array; one dimension by default. */
  readonly shape?: readonly number[];
}

/** A model of a pool, and the calls that wait for it. */
interface PoolEntry {
  readonly loading: Promise<{ readonly model: LocalModel; readonly pooled: PooledModel }>;
  /** Once it is loaded. */
  model: LocalModel | undefined;
  /** Calls of `getModel` that wait for it. */
  waiting: number;
  /** Whether a call got it. */
  isUsed: boolean;
}

/** Models by type and name: one loaded copy of each, however many ask. */
export class ResourcePoolBridgeIntegration {
  readonly #options: BackendOptions;
  readonly #maxConnections: number;
  readonly #backends = new Map<string, Promise<Backend>>();
  readonly #models = new Map<string, PoolEntry>();
  /** Callers that wait for a connection. */
  readonly #waiting: (() => void)[] = [];
  #running = 0;

  /** At most `maxConnections` inputs are processed at a time. The other options are those of the backends. */
  constructor({ maxConnections = 4, ...options }: BackendOptions & { readonly maxConnections?: number } = {}) {
    if (!Number.isInteger(maxConnections) || maxConnections < 1) throw new CotensorError("Invalid", "maxConnections: an integer above 0 is required");
    this.#maxConnections = maxConnections;
    this.#options = options;
  }

  /** Limits the memory of tensors on each device, and gives the manager of the pool's tensors. */
  async setupTensorSharing({ maxMemoryMb }: { readonly maxMemoryMb?: number } = {}): Promise<TensorSharingManager> {
    const { store, devices } = await this.#first();
    if (maxMemoryMb !== undefined) for (const device of devices) store.limitMemory(device, maxMemoryMb * 2 ** 20);
    return new TensorSharingManager(store);
  }

  /**
   * A model by type (a family such as `vit`, or a type such as `vision`, `text_embedding`, `audio`) and name. It is loaded once, and anew
   * after a program disposed it. A signal ends the waiting of this call; the loading goes on.
   */
  getModel(modelType: string, modelName: string, hardwarePreferences: HardwarePreferences = {}, { signal }: CallOptions = {}): Promise<PooledModel> {
    return unlessAborted(signal, async () => {
      const { priorityList = FIRST, precision, mixedPrecision } = hardwarePreferences;
      const key = JSON.stringify([modelName, priorityList, precision, mixedPrecision]);
      const known = this.#models.get(key);
      const entry: PoolEntry =
        known && !known.model?.isDisposed
          ? known
          : { loading: this.#load(modelName, hardwarePreferences, priorityList), model: undefined, waiting: 0, isUsed: false };
      this.#models.set(key, entry);
      entry.waiting += 1;
      try {
        const { model, pooled } = await entry.loading;
        entry.model = model;
        if (!model.isOfType(modelType)) {
          throw new CotensorError("Invalid", `modelType: ${modelName} is a model of the family ${model.family}, not of the type ${modelType}`);
        }
        entry.isUsed = true;
        return pooled;
      } finally {
        entry.waiting -= 1;
        if (!entry.isUsed && entry.waiting === 0) await this.#forget(key, entry);
      }
    });
  }

  /** Publishes a tensor, or takes a published one, and leases it to each consumer. */
  async shareTensorBetweenModels(sharing: SharedBetweenModels): Promise<SharedTensor> {
    const { tensorData, tensorName, producerModel, consumerModels, storageType = "cpu", shape } = sharing;
    const { store, devices } = await this.#first();
    let shared: SharedTensor;
    if (tensorData instanceof SharedTensor) {
      shared = tensorData;
    } else if (tensorData instanceof Tensor) {
      shared = new SharedTensor(store, tensorData.sameFor(producerModel));
    } else {
      const device = devices.includes(storageType) ? storageType : "cpu";
      shared = new SharedTensor(store, store.put(tensorName, tensorData, { device, holder: producerModel, ...(shape ? { shape } : {}) }));
    }
    for (const model of consumerModels) shared.acquire(model);
    return shared;
  }

  /** Disposes all models and stores of the pool. */
  async dispose(): Promise<void> {
    for (const [key, entry] of this.#models) await this.#forget(key, entry);
    // The first one owns the store.
    for (const backend of [...this.#backends.values()].reverse()) await (await backend).dispose();
    this.#backends.clear();
  }

  async #load(modelName: string, preferences: HardwarePreferences, priorityList: readonly Device[]): PoolEntry["loading"] {
    const backend = await this.#backend(priorityList);
    const { variant, quantization } = await chooseGraphs(modelName, preferences, () => backend.fileOf(modelName, REPORT_FILE));
    const model = backend.createModel(undefined, { modelId: modelName, ...(variant === undefined ? {} : { variant }) });
    try {
      await model.initialize();
    } catch (error) {
      await model.dispose();
      throw error;
    }
    const call = (input: ModelInput, options: CallOptions = {}): Promise<Result> =>
      unlessAborted(options.signal, () => this.#connected(() => model.process(input, options)));
    return { model, pooled: Object.assign(call, { model, device: backend.device, skipped: backend.skipped, quantization }) };
  }

  /** Disposes a model. The next call loads it again. */
  async #forget(key: string, entry: PoolEntry): Promise<void> {
    if (this.#models.get(key) === entry) this.#models.delete(key);
    const loaded = await entry.loading.catch(() => undefined);
    await loaded?.model.dispose();
  }

  /** The backend that makes the pool's store. */
  #first(): Promise<Backend> {
    return this.#kept(FIRST.join(" "), async () => {
      const backend = await Backend.create(FIRST, this.#options);
      await backend.initialize();
      return backend;
    });
  }

  /** A backend for these devices, on the store of the pool. */
  async #backend(priorityList: readonly Device[]): Promise<Backend> {
    const { store } = await this.#first();
    return this.#kept(priorityList.join(" "), () => Backend.create(priorityList, { ...this.#options, store }));
  }

  #kept(key: string, create: () => Promise<Backend>): Promise<Backend> {
    const backend = this.#backends.get(key) ?? create();
    this.#backends.set(key, backend);
    // The next call tries again.
    backend.catch(() => this.#backends.delete(key));
    return backend;
  }

  async #connected<Value>(call: () => Promise<Value>): Promise<Value> {
    if (this.#running >= this.#maxConnections) await new Promise<void>((resolve) => this.#waiting.push(resolve));
    else this.#running += 1;
    try {
      return await call();
    } finally {
      // The next caller takes the place.
      const next = this.#waiting.shift();
      if (next) next();
      else this.#running -= 1;
    }
  }
}

// A device, a store, an engine and the models that they run.
import type { Ort } from "../engine/ort.js";
import { OrtEngine } from "../engine/engine.js";
import { CotensorError } from "../errors.js";
import { budgetsOf } from "../memory/budgets.js";
import type { Diagnostics, Stats } from "../reports.js";
import { Computations } from "../stage/computations.js";
import { Store, type SharedTensorConfig, type StoreOptions } from "../store.js";
import type { Device } from "../types.js";
import { WeightCache } from "../weights/cache.js";
import { unlessAborted } from "./abort.js";
import { importOrt } from "./builds.js";
import { loadModels, newHasher } from "./core.js";
import { chooseDevice, type DeviceChoice } from "./devices.js";
import { ModelFolder, folderUrl, type ModelSources, type Progress } from "./folder.js";
import { LoadedModel } from "./loaded_model.js";
import { LocalModel, type ModelBackend } from "./local_model.js";
import type { CallOptions, ModelOptions } from "./model.js";

/** Options of a backend. */
export interface BackendOptions extends ModelSources {
  /** The module of onnxruntime-web; by default `onnxruntime-web/wasm` is imported for the CPU, `onnxruntime-web/webgpu` for a GPU. */
  readonly ort?: Ort;
  /** The program's own device, which the program destroys. */
  readonly gpu?: GPUDevice;
  /** The program's own store, which the program disposes. */
  readonly store?: Store;
  /** The most bytes of all tensors on a device; by default a quarter of the memory that the browser says, 2 GiB at most. */
  readonly budgets?: StoreOptions["budgets"];
  readonly sharedTensorConfig?: SharedTensorConfig;
  /** Where weights are kept between visits; by default the private file system of the site. */
  readonly cache?: WeightCache;
  /** Called while the files of a model arrive. */
  readonly progress?: Progress;
}

/** The counters of a backend's store, and the weights of its models. */
export interface BackendStats extends Stats {
  readonly loaded_models: number;
  /** Bytes of the weights in all loaded graphs. */
  readonly weight_bytes: number;
}

/** What exists once a backend is initialized. */
interface Parts {
  readonly store: Store;
  readonly engine: OrtEngine;
  readonly computations: Computations;
  readonly cache: WeightCache;
}

/** A model and its users. */
interface ModelEntry {
  readonly loading: Promise<LoadedModel>;
  /** Once it is open. */
  model: LoadedModel | undefined;
  users: number;
}

let defaults: BackendOptions = {};

/** Sets options for all later backends of this thread, such as `models`. Options of a backend have precedence. */
export function setBackendDefaults(options: BackendOptions): void {
  defaults = { ...options };
}

/** Runs models in this thread. */
export class Backend implements ModelBackend {
  readonly #options: BackendOptions;
  readonly #choice: DeviceChoice;
  #config: SharedTensorConfig | undefined;
  #starting: Promise<Parts> | undefined;
  #parts: Parts | undefined;
  readonly #models = new Map<string, ModelEntry>();
  #isDisposed = false;

  private constructor(choice: DeviceChoice, options: BackendOptions) {
    this.#choice = choice;
    this.#options = options;
    this.#config = options.sharedTensorConfig;
  }

  /** A backend on the first device of the list that the browser has. */
  static async create(priorityList: readonly Device[], options: BackendOptions = {}): Promise<Backend> {
    const all = { ...defaults, ...options };
    return new Backend(await chooseDevice(priorityList, all), all);
  }

  /** The device on which models run. */
  get device(): Device {
    return this.#choice.device;
  }

  /** The preferred devices that are not available, each with the reason. */
  get skipped(): Readonly<Record<string, string>> {
    return this.#choice.skipped;
  }

  /** The devices on which the store has memory. */
  get devices(): readonly Device[] {
    return this.store.devices;
  }

  /** The store of tensors. */
  get store(): Store {
    return this.#ready().store;
  }

  get engine(): OrtEngine {
    return this.#ready().engine;
  }

  get computations(): Computations {
    return this.#ready().computations;
  }

  get progress(): Progress | undefined {
    return this.#options.progress;
  }

  /** Makes the store and the engine. The first model does so, too. */
  initialize({ signal }: CallOptions = {}): Promise<void> {
    return unlessAborted(signal, async () => {
      this.check();
      this.#starting ??= this.#start().catch((error: unknown) => {
        this.#starting = undefined;
        throw error;
      });
      await this.#starting;
    });
  }

  /** Sets which tensors are shared, before the store exists. */
  configure(config: SharedTensorConfig): void {
    if (this.#config === undefined && this.#starting === undefined && !this.#options.store) this.#config = config;
    else if (JSON.stringify(this.#config) !== JSON.stringify(config)) {
      throw new CotensorError("Conflict", "sharedTensorConfig: the backend's store has another configuration; pass it to the backend, or to its first model");
    }
  }

  /** A model of `family`, or of any. It is loaded by `initialize`, or by its first input. */
  createModel(family: string | undefined, options: ModelOptions): LocalModel {
    this.check();
    return new LocalModel(this, options, family);
  }

  /** The loaded model of that name: one for all users. */
  async openModel(modelId: string, options: ModelOptions): Promise<LoadedModel> {
    await this.initialize();
    const { cache } = this.#ready();
    const key = JSON.stringify([folderUrl(modelId, this.#options).href, options.variant, options.useOptimizedOps ?? true]);
    const known = this.#models.get(key);
    const open = (): Promise<LoadedModel> => LoadedModel.open(this, ModelFolder.of(modelId, this.#options, cache), key, options);
    const entry: ModelEntry = known ?? { loading: open(), model: undefined, users: 0 };
    this.#models.set(key, entry);
    entry.users += 1;
    try {
      return (entry.model = await entry.loading);
    } catch (error) {
      // The next call tries again.
      if (this.#models.get(key) === entry) this.#models.delete(key);
      throw error;
    }
  }

  /** A small file of a model's folder; nothing if there is no such file. */
  async fileOf(modelId: string, file: string): Promise<string | undefined> {
    await this.initialize();
    return ModelFolder.of(modelId, this.#options, this.#ready().cache).text(file);
  }

  /** Ends one use of a model. The last one releases its graphs. */
  async releaseModel(model: LoadedModel | undefined): Promise<void> {
    const entry = model && this.#models.get(model.key);
    if (!model || !entry) return;
    entry.users -= 1;
    if (entry.users > 0) return;
    this.#models.delete(model.key);
    await model.release();
  }

  getStats(): BackendStats {
    const loaded = [...this.#models.values()].flatMap(({ model }) => model ?? []);
    const weights = loaded.reduce((sum, model) => sum + model.weightBytes, 0);
    return { ...this.store.getStats(), loaded_models: loaded.length, weight_bytes: weights };
  }

  getDiagnostics(): Diagnostics {
    return this.store.getDiagnostics();
  }

  /** Releases all models, tensors and the device, except those that the program gave. A second call does nothing. */
  async dispose(): Promise<void> {
    if (this.#isDisposed) return;
    this.#isDisposed = true;
    const parts = await this.#starting?.catch(() => undefined);
    for (const { loading } of this.#models.values()) await (await loading.catch(() => undefined))?.release();
    this.#models.clear();
    await parts?.engine.dispose();
    if (!this.#options.store) parts?.store.dispose();
    // A device of the program stays.
    this.#choice.gpu?.destroy();
  }

  async #start(): Promise<Parts> {
    const { device, memories } = this.#choice;
    const { ort = await importOrt(device), budgets } = this.#options;
    const config = this.#config ? { sharedTensorConfig: this.#config } : {};
    const devices: Device[] = ["cpu", ...memories.map((memory) => memory.device)];
    const store = this.#options.store ?? (await Store.create({ memories, budgets: budgetsOf(devices, budgets), ...config }));
    const engine = OrtEngine.create({ ort, store, provider: device === "cpu" ? "wasm" : device });
    await loadModels();
    const cache = this.#options.cache ?? (await WeightCache.open({ newHasher }));
    this.#parts = { store, engine, computations: new Computations(store), cache };
    return this.#parts;
  }

  #ready(): Parts {
    this.check();
    if (!this.#parts) throw new CotensorError("Conflict", "await the backend's initialize() first");
    return this.#parts;
  }

  /** Throws once the backend was disposed. */
  check(): void {
    if (this.#isDisposed) throw new CotensorError("Conflict", "the backend was disposed; create another one");
  }
}

// The manager of docs/reference/api-names.md: tensors by name that models register, acquire and release.
import { CotensorError } from "./errors.js";
import type { OptimizeReport, Recommendations, Stats } from "./reports.js";
import { SharedTensor } from "./shared_tensor.js";
import { Store } from "./store.js";
import type { Tensor } from "./tensor.js";
import type { Device, DType, Kind } from "./types.js";

/** A tensor to register. */
export interface Registration {
  readonly name: string;
  /** In elements. */
  readonly shape: readonly number[];
  /** The host by default. */
  readonly storageType?: Device;
  readonly producerModel: string;
  /** The models that could use it. */
  readonly consumerModels?: readonly string[];
  /** `float32` by default. */
  readonly dtype?: DType;
  /** By default the kind that the name ends with, such as `bert_text_embedding`; else `other`. */
  readonly kind?: Kind;
}

const NAMED_KINDS: readonly Kind[] = ["text_embedding", "vision_embedding", "audio_embedding", "vision_text_joint", "audio_text_joint"];

/** Tensors that models share by name. A tensor without holders stays until its memory is needed. */
export class TensorSharingManager {
  readonly #tensors = new Map<string, { tensor: SharedTensor; consumers: ReadonlySet<string> }>();
  /** Lookups of names that are not registered. */
  #misses = 0;

  /** A manager over a store, whose budgets limit the memory. */
  constructor(readonly store: Store) {}

  /** A manager with a store of its own, of at most `maxMemoryMb` MiB on the host. */
  static async create(maxMemoryMb: number): Promise<TensorSharingManager> {
    return new TensorSharingManager(await Store.create({ budgets: { cpu: maxMemoryMb * 2 ** 20 } }));
  }

  /** Registers a zeroed tensor that its producer holds, and writes until another model acquires it. */
  registerSharedTensor(registration: Registration): SharedTensor {
    const { name, shape, storageType = "cpu", producerModel, consumerModels = [], dtype = "float32" } = registration;
    const known = this.#tensors.get(name);
    if (known && known.tensor.getReferenceCount() > 0) {
      throw new CotensorError("Conflict", `name: ${JSON.stringify(name)} is registered and held; release it first`);
    }
    const kind = registration.kind ?? NAMED_KINDS.find((each) => name === each || name.match(`[^A-Za-z0-9]${each}$`)) ?? "other";
    const tensor = new SharedTensor(this.store, name, shape, { dtype, storageType, producerModel, kind, cached: true });
    this.#tensors.set(name, { tensor, consumers: new Set(consumerModels) });
    return tensor;
  }

  /** Acquires a tensor once for `model`. */
  getSharedTensor(name: string, model: string): SharedTensor {
    const tensor = this.#find(name);
    try {
      tensor.acquire(model);
    } catch (error) {
      // It was evicted.
      if (error instanceof CotensorError && error.kind === "NotFound") this.#tensors.delete(name);
      throw error;
    }
    return tensor;
  }

  /** A view of `size` elements from `offset` on along each dimension, which publishes the tensor. The view is a lease. */
  createTensorView(name: string, offset: readonly number[], size: readonly number[]): Tensor {
    return this.#find(name).createView(offset, size);
  }

  /** Acquires a tensor that `fromModel` holds for each of `toModels`. */
  shareTensorBetweenModels(name: string, fromModel: string, toModels: readonly string[]): SharedTensor {
    const tensor = this.#find(name);
    if (!(fromModel in tensor.holders)) {
      throw new CotensorError("Conflict", `${name} is not held by ${JSON.stringify(fromModel)}`);
    }
    for (const model of toModels) tensor.acquire(model);
    return tensor;
  }

  /** Releases all tensors that `model` holds. Returns the number of released acquires. */
  releaseModelTensors(model: string): number {
    let released = 0;
    for (const { tensor } of this.#tensors.values()) {
      for (let count = tensor.holders[model] ?? 0; count > 0; count -= 1) {
        tensor.release(model);
        released += 1;
      }
    }
    return released;
  }

  /** Frees every tensor without holders. */
  optimizeMemoryUsage(): OptimizeReport {
    const report = this.store.optimizeMemoryUsage();
    this.#prune();
    return report;
  }

  /** The counters of the store, with the lookups and opportunities of the manager. */
  getStats(): Stats {
    const stats = this.store.getStats();
    const misses = stats.cache_misses + this.#misses;
    const lookups = stats.cache_hits + misses;
    const models = [...new Set([...stats.models, ...[...this.#tensors.values()].flatMap(({ tensor }) => Object.keys(tensor.holders))])].sort();
    const opportunities = this.analyzeSharingOpportunities();
    const rate = lookups === 0 ? 0 : stats.cache_hits / lookups;
    return { ...stats, models, total_models: models.length, cache_misses: misses, hit_rate: rate, sharing_opportunities: opportunities };
  }

  /** The size of a tensor in bytes. */
  getTensorMemoryUsage(name: string): number {
    return this.#find(name).byteLength;
  }

  /** The size of all tensors that `model` holds, in bytes. A tensor counts once. */
  getModelMemoryUsage(model: string): number {
    const held = [...this.#tensors.values()].filter(({ tensor }) => model in tensor.holders);
    return held.reduce((sum, { tensor }) => sum + tensor.byteLength, 0);
  }

  /** For each tensor, the consumers that do not hold it. */
  analyzeSharingOpportunities(): Record<string, string[]> {
    this.#prune();
    const missing = [...this.#tensors].map(([name, { tensor, consumers }]): [string, string[]] => [
      name,
      [...consumers].filter((model) => !(model in tensor.holders)).sort(),
    ]);
    return Object.fromEntries(missing.filter(([, models]) => models.length > 0));
  }

  /** Memory that could be saved. */
  getOptimizationRecommendations(): Recommendations {
    const { sharing_opportunities, hit_rate } = this.getStats();
    return { ...this.store.getOptimizationRecommendations(), sharing_opportunities, cache_efficiency: hit_rate };
  }

  #find(name: string): SharedTensor {
    const found = this.#tensors.get(name);
    if (found) return found.tensor;
    this.#misses += 1;
    throw new CotensorError("NotFound", `no tensor is registered as ${JSON.stringify(name)}`);
  }

  /** Forgets tensors that were evicted. */
  #prune(): void {
    for (const [name, { tensor }] of this.#tensors) {
      if (tensor.isFreed) this.#tensors.delete(name);
    }
  }
}

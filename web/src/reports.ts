// The reports of a store. Their fields have the names of the daemon's JSON.
import { CotensorError } from "./errors.js";

/** The outcome of freeing all unleased tensors. */
export interface OptimizeReport {
  initial_memory_bytes: number;
  current_memory_bytes: number;
  freed_memory_bytes: number;
  freed_tensors_count: number;
  freed_tensors: string[];
  memory_reduction_percent: number;
  remaining_tensor_count: number;
}

/** The memory of one device. */
export interface DeviceStats {
  device: string;
  tensors: number;
  memory_usage_bytes: number;
  max_memory_bytes: number | null;
  peak_memory_bytes: number;
}

/** The tensors of one producer that have no lease. */
export interface KeptTensors {
  producer: string;
  tensors: number;
  bytes: number;
}

/** Why bytes are copied, as in the reports of Cotensor's other languages. */
export type CopyReason =
  | "file import"
  | "engine output"
  | "preprocessed input"
  | "engine conversion"
  | "engine state"
  | "put"
  | "device transfer"
  | "network"
  | "copy on write"
  | "private copy";

/** The copies with one reason. */
export interface Copies {
  reason: string;
  count: number;
  bytes: number;
}

/** The counters of a store. `memory_usage_bytes` and `peak_memory_bytes` are those of the host. */
export interface Stats {
  total_tensors: number;
  spilled_now: number;
  spilled_now_bytes: number;
  counted_seconds: number;
  total_models: number;
  memory_usage_bytes: number;
  max_memory_bytes: number | null;
  metadata_bytes: number;
  ready_bytes: number;
  unshared_bytes: number;
  saved_bytes: number;
  kept_tensors: number;
  kept_bytes: number;
  kept_by: KeptTensors[];
  memory_usage_mb: number;
  peak_memory_bytes: number;
  devices: DeviceStats[];
  cache_hits: number;
  cache_misses: number;
  hit_rate: number;
  models: string[];
  sharing_opportunities: Record<string, string[]>;
  refused: Record<string, number>;
  copies: Copies[];
  evictions: number;
  evicted_bytes: number;
  spills: number;
  spilled_bytes: number;
  restores: number;
}

/** Memory that could be saved. */
export interface Recommendations {
  largest_tensors: [name: string, bytes: number][];
  low_reference_tensors: [name: string, leases: number][];
  sharing_opportunities: Record<string, string[]>;
  total_memory_mb: number;
  potential_savings_mb: number;
  cache_efficiency: number;
}

/** One tensor. */
export interface TensorInfo {
  name: string;
  version: number;
  dtype: string;
  shape: number[];
  bytes: number;
  device: string;
  memory: string;
  kind: string;
  space: string | null;
  producer: string;
  holders: Record<string, number>;
  age_seconds: number;
  hits: number;
  cached: boolean;
  member_count: number;
}

/** One copy of a tensor's bytes. */
export interface RecentCopy {
  tensor: string;
  reason: string;
  bytes: number;
  age_seconds: number;
}

/** One copy from a device to the host, with the caller's reason. */
export interface ReadBack {
  tensor: string;
  reason: string;
  bytes: number;
}

/** Every tensor and every copy. */
export interface Diagnostics {
  tensors: TensorInfo[];
  copies: Copies[];
  recent_copies: RecentCopy[];
  /** Copies from devices to the host by the reason that the caller gave. `copies` counts them as device transfers. */
  read_backs: Copies[];
  /** The latest, oldest first. */
  recent_read_backs: ReadBack[];
  cache_errors: number;
  last_cache_error: string | null;
}

const RECENT_MAX = 100;
const REASONS_MAX = 100;
const REASON_LENGTH_MAX = 200;

/** Counts copies from devices to the host. The number of different reasons is bounded. */
export class ReadBackCounters {
  readonly #totals = new Map<string, Copies>();
  readonly #recent: ReadBack[] = [];

  record(tensor: string, reason: string, bytes: number): void {
    const known = this.#totals.has(reason) || this.#totals.size < REASONS_MAX;
    const counted = known ? reason : "other reasons";
    const total = this.#totals.get(counted) ?? { reason: counted, count: 0, bytes: 0 };
    total.count += 1;
    total.bytes += bytes;
    this.#totals.set(counted, total);
    this.#recent.push({ tensor, reason, bytes });
    if (this.#recent.length > RECENT_MAX) this.#recent.shift();
  }

  totals(): Copies[] {
    return [...this.#totals.values()].map((total) => ({ ...total }));
  }

  recent(): ReadBack[] {
    return this.#recent.map((each) => ({ ...each }));
  }
}

/** The reports of several stores as one. */
export function mergedDiagnostics(reports: readonly Diagnostics[]): Diagnostics {
  const all = <Key extends keyof Diagnostics>(key: Key): Diagnostics[Key] => reports.flatMap((report) => report[key] as unknown[]) as Diagnostics[Key];
  const totals = (lists: readonly Copies[]): Copies[] => {
    const sums = new Map<string, Copies>();
    for (const { reason, count, bytes } of lists) {
      const sum = sums.get(reason) ?? { reason, count: 0, bytes: 0 };
      sums.set(reason, { reason, count: sum.count + count, bytes: sum.bytes + bytes });
    }
    return [...sums.values()];
  };
  return {
    tensors: all("tensors"),
    copies: totals(all("copies")),
    recent_copies: all("recent_copies"),
    read_backs: totals(all("read_backs")),
    recent_read_backs: all("recent_read_backs"),
    cache_errors: reports.reduce((sum, report) => sum + report.cache_errors, 0),
    last_cache_error: reports.map((report) => report.last_cache_error).find((error) => error !== null) ?? null,
  };
}

/** Checks the caller's reason for a copy. */
export function checkReason(reason: string): void {
  if (typeof reason !== "string" || reason === "" || reason.length > REASON_LENGTH_MAX) {
    const message = `a text of 1 to ${REASON_LENGTH_MAX} characters is required; diagnostics() shows it beside the copy`;
    throw new CotensorError("Invalid", `reason: ${message}`);
  }
}

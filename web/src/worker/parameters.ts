import { CotensorError } from "../errors.js";
import { budgetsOf } from "../memory/budgets.js";
import { GpuMemory, requestGpu } from "../memory/gpu.js";
import { Store } from "../store.js";
import type { Device } from "../types.js";
import type { Hub } from "./hub.js";
import { serve } from "./serve.js";

/** What the package's own worker is given in its URL. Pages with other settings get another worker. */
export interface WorkerSettings {
  /** The URL of onnxruntime-web's module. */
  readonly ort?: string | URL;
  /** Adds the memory of a WebGPU device, if the browser has one. */
  readonly webgpu?: boolean;
  /** The most bytes of all tensors on a device; by default as those of a backend. */
  readonly budgets?: Partial<Record<Device, number>>;
}

/** The worker's URL with its settings. */
export function withSettings(worker: URL, { ort, webgpu, budgets }: WorkerSettings, base: string | undefined): URL {
  const url = new URL(worker);
  if (ort !== undefined) url.searchParams.set("ort", new URL(ort, base).href);
  if (webgpu) url.searchParams.set("webgpu", "1");
  for (const [device, bytes] of Object.entries(budgets ?? {})) url.searchParams.set(`budget.${device}`, String(bytes));
  return url;
}

/** Serves with the settings in a URL. */
export function serveSettings(url: URL): Hub {
  const { searchParams } = url;
  const ort = searchParams.get("ort");
  const budgets: Partial<Record<Device, number>> = {};
  for (const [name, value] of searchParams) {
    if (name.startsWith("budget.")) budgets[name.slice("budget.".length) as Device] = Number(value);
  }
  const store = async (): Promise<Store> => {
    const gpu = searchParams.has("webgpu") ? await requestGpu() : "not asked for";
    if (typeof gpu !== "string") return Store.create({ memories: [new GpuMemory(gpu)], budgets: budgetsOf(["cpu", "webgpu"], budgets) });
    return Store.create({ budgets: budgetsOf(["cpu"], budgets) });
  };
  // Nothing is awaited before: clients connect as soon as the script ran.
  return serve({ store, ...(ort === null ? {} : { ort: () => importOrt(ort) }) });
}

async function importOrt(url: string): Promise<unknown> {
  try {
    return (await import(url)) as unknown;
  } catch (error) {
    throw new CotensorError("Io", `ort ${url}: the worker could not import it: ${String(error)}`);
  }
}

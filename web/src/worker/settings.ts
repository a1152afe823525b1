// The settings of the package's own worker. They are in the worker's name, because bundlers choose its address.
import { absoluteUrl, addressOf, ADDRESSES, setAddresses, type AddressName } from "../addresses.js";
import { CotensorError } from "../errors.js";
import { budgetsOf } from "../memory/budgets.js";
import { GpuMemory, requestGpu } from "../memory/gpu.js";
import { importUnbundled } from "../node.js";
import { Store } from "../store.js";
import type { Device } from "../types.js";
import type { Hub } from "./hub.js";
import { settingsIn, withSettings } from "./names.js";
import { serve } from "./serve.js";

/** What the package's own worker is given. Pages with other settings get another worker. */
export interface WorkerSettings {
  /** The URL of onnxruntime-web's module. Without it, the worker imports the library as its bundler resolves it. */
  readonly ort?: string | URL;
  /** Adds the memory of a WebGPU device, if the browser has one. */
  readonly webgpu?: boolean;
  /** The most bytes of all tensors on a device; by default as those of a backend. */
  readonly budgets?: Partial<Record<Device, number>>;
}

const ADDRESS = "address.";
const BUDGET = "budget.";

/** The name of the package's worker with its settings, and with the addresses of this thread. */
export function workerName(scope: string, { ort, webgpu, budgets }: WorkerSettings): string {
  const settings = new URLSearchParams();
  if (ort !== undefined) settings.set("ort", absoluteUrl("ort", ort).href);
  if (webgpu) settings.set("webgpu", "1");
  for (const [device, bytes] of Object.entries(budgets ?? {})) settings.set(BUDGET + device, String(bytes));
  for (const name of ADDRESSES) {
    const address = addressOf(name);
    if (address && name !== "worker") settings.set(ADDRESS + name, address.href);
  }
  return withSettings(scope, settings);
}

/** Serves in a worker of that name. */
export function serveWorker(worker: string): Hub {
  const addresses: Partial<Record<AddressName, string>> = {};
  const budgets: Partial<Record<Device, number>> = {};
  const settings = settingsIn(worker);
  for (const [name, value] of settings) {
    if (name.startsWith(ADDRESS)) addresses[name.slice(ADDRESS.length) as AddressName] = value;
    if (name.startsWith(BUDGET)) budgets[name.slice(BUDGET.length) as Device] = Number(value);
  }
  setAddresses(addresses);
  const ort = settings.get("ort");
  return serveWith({ webgpu: settings.has("webgpu"), budgets, ...(ort === null ? {} : { ort }) });
}

/** Serves with settings. The URL in `ort` is absolute. */
export function serveWith({ ort, webgpu = false, budgets = {} }: WorkerSettings): Hub {
  const store = async (): Promise<Store> => {
    const gpu = webgpu ? await requestGpu() : "not asked for";
    if (typeof gpu !== "string") return Store.create({ memories: [new GpuMemory(gpu)], budgets: budgetsOf(["cpu", "webgpu"], budgets) });
    return Store.create({ budgets: budgetsOf(["cpu"], budgets) });
  };
  // Nothing is awaited before: clients connect as soon as the script ran.
  return serve({ store, ...(ort === undefined ? {} : { ort: () => importOrt(String(ort)) }) });
}

async function importOrt(url: string): Promise<unknown> {
  try {
    return await importUnbundled(url);
  } catch (error) {
    throw new CotensorError("Io", `ort ${url}: the worker could not import it: ${String(error)}`);
  }
}

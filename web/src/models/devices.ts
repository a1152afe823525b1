// Which device of the browser models run on.
import { CotensorError } from "../errors.js";
import { GpuMemory, requestGpu } from "../memory/gpu.js";
import type { DeviceMemory } from "../memory/memory.js";
import { WebnnMemory, type MLContext } from "../memory/webnn.js";
import type { Store } from "../store.js";
import type { Device } from "../types.js";

/** A device that was chosen from preferences. */
export interface DeviceChoice {
  readonly device: Device;
  /** The preferred devices that were skipped, each with the reason. */
  readonly skipped: Readonly<Record<string, string>>;
  /** The device's memory for a new store. */
  readonly memories: readonly DeviceMemory[];
  /** The device of WebGPU that was requested here. Its owner destroys it. */
  readonly gpu?: GPUDevice;
}

/** What the program has already. */
export interface GivenDevices {
  readonly gpu?: GPUDevice | undefined;
  /** Its memories say which devices can be used. */
  readonly store?: Store | undefined;
}

/** The first device of the list that the browser has, or that the given store has memory on. */
export async function chooseDevice(priorityList: readonly Device[], { gpu, store }: GivenDevices): Promise<DeviceChoice> {
  const skipped: Record<string, string> = {};
  for (const device of priorityList) {
    if (device === "cpu") return { device, skipped, memories: [] };
    const found = store ? (store.devices.includes(device) ? {} : `the store has no memory on ${device}`) : await request(device, gpu);
    if (typeof found !== "string") return { device, skipped, memories: [], ...found };
    skipped[device] = found;
  }
  const reasons = Object.entries(skipped).map(([device, reason]) => `${device}: ${reason}`);
  throw new CotensorError("Unsupported", `priorityList: no preferred device can be used (${reasons.join("; ") || "the list is empty"})`);
}

type Requested = { readonly memories: readonly DeviceMemory[]; readonly gpu?: GPUDevice };

async function request(device: Device, gpu: GPUDevice | undefined): Promise<Requested | string> {
  if (device === "webgpu") return gpu ? { memories: [new GpuMemory(gpu)] } : webGpu();
  if (device === "webnn") return webNn();
  return `unknown device ${JSON.stringify(device)}`;
}

async function webGpu(): Promise<Requested | string> {
  const gpu = await requestGpu();
  return typeof gpu === "string" ? gpu : { gpu, memories: [new GpuMemory(gpu)] };
}

async function webNn(): Promise<Requested | string> {
  const api = (globalThis.navigator as (Navigator & { ml?: { createContext(): Promise<MLContext> } }) | undefined)?.ml;
  if (!api) return "the browser has no WebNN here; Chromium has it behind a flag";
  try {
    return { memories: [new WebnnMemory(await api.createContext())] };
  } catch (error) {
    return `the browser gave no context of WebNN: ${String(error)}`;
  }
}

import type { Device } from "../types.js";

/** The memory of a computer whose browser does not say it, in bytes. */
const MEMORY_BYTES = 4 * 2 ** 30;
/** The part of it for the tensors on each device. */
const SHARE = 1 / 4;
const KNOWN: readonly Device[] = ["cpu", "webgpu", "webnn"];

/**
 * The budgets of a store of models: those of the program, else a quarter of the memory that the browser says, 2 GiB at most. Results
 * stay until their memory is needed, so that without a budget they would take all of it.
 */
export function budgetsOf(devices: readonly Device[], given: Partial<Record<Device, number>> = {}): Partial<Record<Device, number>> {
  const { deviceMemory } = (globalThis.navigator ?? {}) as { deviceMemory?: number };
  const bytes = (deviceMemory === undefined ? MEMORY_BYTES : Math.min(deviceMemory, 8) * 2 ** 30) * SHARE;
  const all: Partial<Record<Device, number>> = { ...Object.fromEntries(devices.map((device) => [device, bytes])), ...given };
  // A budget of a device that the browser lacks has no effect. An unknown name is an error of the store.
  for (const device of KNOWN) if (!devices.includes(device)) delete all[device];
  return all;
}

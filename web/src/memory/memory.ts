import type { Device } from "../types.js";

/**
 * The memory of one device. A storage is one allocation, such as a `GPUBuffer`.
 *
 * The methods must not use the store that the memory belongs to.
 */
export interface DeviceMemory<Storage = unknown> {
  /** Where its storages are. A store has one memory for each device. */
  readonly device: Device;

  /** A storage of at least `bytes` bytes, zeroed. */
  allocate(bytes: number): Storage;

  /** Whether `value` is a storage that this memory can adopt. */
  isStorage(value: unknown): value is Storage;

  /** The length of a storage in bytes. */
  sizeBytes(storage: Storage): number;

  /** Copies `bytes` to the start of a storage. */
  write(storage: Storage, bytes: Uint8Array<ArrayBuffer>): void;

  /** Copies `size` bytes from byte `offset` on. */
  read(storage: Storage, offset: number, size: number): Promise<Uint8Array<ArrayBuffer>>;

  /** Gives the storage back to the system. */
  free(storage: Storage): void;
}

import type { Device, DType } from "../types.js";

/** The elements of a storage: memories of typed arrays of a device need more than a number of bytes. */
export interface Layout {
  readonly dtype: DType;
  /** Dimensions, in elements. */
  readonly shape: readonly number[];
}

/**
 * The memory of one device. A storage is one allocation, such as a `GPUBuffer`.
 *
 * The methods must not use the store that the memory belongs to.
 */
export interface DeviceMemory<Storage = unknown> {
  /** Where its storages are. A store has one memory for each device. */
  readonly device: Device;
  /** Resolves with the reason when the device is lost, with all storages; without it, a device that cannot be lost. */
  readonly lost?: Promise<string>;

  /** The offset of a part that a program binds is a multiple of so many bytes; without it, any offset can be bound. */
  readonly bindingAlignment?: number;

  /** A storage for `bytes` bytes with this layout, zeroed. */
  allocate(bytes: number, layout: Layout): Storage;

  /** The storage of memory that exists, such as a `GPUBuffer`; nothing if `value` is not memory of the device. */
  adopt(value: unknown, layout: Layout): Storage | undefined;

  /** The length of a storage in bytes. */
  sizeBytes(storage: Storage): number;

  /** Copies `bytes` to the start of a storage. */
  write(storage: Storage, bytes: Uint8Array<ArrayBuffer>): void;

  /** Copies `size` bytes from byte `offset` on. */
  read(storage: Storage, offset: number, size: number): Promise<Uint8Array<ArrayBuffer>>;

  /** Gives the storage back to the system. */
  free(storage: Storage): void;
}

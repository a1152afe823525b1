import type { DeviceMemory } from "./memory.js";

/** Host memory: every storage is the bytes of an `ArrayBuffer`. */
export class CpuMemory implements DeviceMemory<Uint8Array<ArrayBuffer>> {
  readonly device = "cpu";

  allocate(bytes: number): Uint8Array<ArrayBuffer> {
    return new Uint8Array(bytes);
  }

  adopt(value: unknown): Uint8Array<ArrayBuffer> | undefined {
    return value instanceof Uint8Array && value.buffer instanceof ArrayBuffer ? (value as Uint8Array<ArrayBuffer>) : undefined;
  }

  sizeBytes(storage: Uint8Array<ArrayBuffer>): number {
    return storage.byteLength;
  }

  write(storage: Uint8Array<ArrayBuffer>, bytes: Uint8Array<ArrayBuffer>): void {
    storage.set(bytes);
  }

  read(storage: Uint8Array<ArrayBuffer>, offset: number, size: number): Promise<Uint8Array<ArrayBuffer>> {
    return Promise.resolve(storage.slice(offset, offset + size));
  }

  /** The garbage collector frees the bytes. */
  free(): void {}
}

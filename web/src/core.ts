// The WebAssembly module: the store without the memory of tensors.
import init, { StoreCore } from "./wasm/cotensor.js";
import type { Device, DType, Kind } from "./types.js";

export { setVerboseLogging } from "./wasm/cotensor.js";
export { StoreCore };

/** What `StoreCore.reserve` reads; `web/wasm/src/spec.rs` names the same fields. */
export interface ReservationRequest {
  readonly name: string;
  readonly dtype: DType;
  readonly shape: readonly number[];
  readonly device: Device;
  readonly kind: Kind;
  readonly producer: string;
  readonly space: string | undefined;
  readonly provenance: string | undefined;
  readonly metadata: string | undefined;
  readonly recompute: number | undefined;
  readonly private: boolean;
}

/** What `StoreCore.describe` returns, as JSON. */
export interface Description {
  readonly name: string;
  readonly version: number;
  readonly kind: Kind;
  readonly producer: string;
  readonly space: string | null;
  readonly provenance: string | null;
  readonly metadata: string | null;
  readonly dtype: DType;
  readonly shape: readonly number[];
  readonly strides: readonly number[];
  readonly offset_bytes: number;
  readonly span_bytes: number;
  readonly element_bytes: number;
  readonly contiguous: boolean;
}

let loading: Promise<unknown> | undefined;

/** Loads the module, once. After a failed attempt, the next call tries again. */
export function loadCore(): Promise<unknown> {
  loading ??= load().catch((error: unknown) => {
    loading = undefined;
    throw error;
  });
  return loading;
}

async function load(): Promise<void> {
  const url = new URL("./wasm/cotensor_bg.wasm", import.meta.url);
  await init({ module_or_path: url.protocol === "file:" ? await readFile(url) : url });
}

/** Node's `fetch` does not read files. */
async function readFile(url: URL): Promise<Uint8Array<ArrayBuffer>> {
  // A variable, so that no bundler looks for the module.
  const name = "node:fs/promises";
  const files = (await import(name)) as { readFile(url: URL): Promise<Uint8Array<ArrayBuffer>> };
  return files.readFile(url);
}

// The WebAssembly module: the store without the memory of tensors.
import { moduleLoader } from "./module.js";
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

/** Loads the module, once. After a failed attempt, the next call tries again. */
export const loadCore = moduleLoader("core", () => new URL("./wasm/cotensor_bg.wasm", import.meta.url), init);

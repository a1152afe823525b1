// The backend as the models on it know it.
import type { OrtEngine } from "../engine/engine.js";
import type { Computations } from "../stage/computations.js";
import type { Store } from "../store.js";
import type { Progress } from "./folder.js";

/** What loads and runs the graphs of models. */
export interface ModelHost {
  readonly store: Store;
  readonly engine: OrtEngine;
  readonly computations: Computations;
  /** Called while files arrive. */
  readonly progress: Progress | undefined;
}

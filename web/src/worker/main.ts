// The file of the package's own worker, `cotensor/worker`. Its name has the settings.
import { serveWorker } from "./settings.js";

serveWorker((globalThis as { name?: string }).name ?? "");

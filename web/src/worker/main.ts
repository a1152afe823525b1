// The file of the package's own worker, `cotensor/worker`. Its URL has the settings.
import { serveSettings } from "./parameters.js";

serveSettings(new URL(location.href));

// The names of workers: that of a hub, and the settings of the package's own worker.
import { VERSION } from "../version.js";

const SEPARATOR = "?";

/** The name of a hub's worker and the beginning of its locks' names: pages of different versions have workers of their own. */
export function scopeName(hub: string): string {
  return `cotensor.${VERSION}.${hub}`;
}

/** The name of a worker with settings. */
export function withSettings(scope: string, settings: URLSearchParams): string {
  const text = settings.toString();
  return text === "" ? scope : scope + SEPARATOR + text;
}

/** The beginning of the locks' names, in the name of a worker. */
export function scopeOf(worker: string): string {
  return worker.split(SEPARATOR, 1)[0] ?? worker;
}

/** The settings in the name of a worker. */
export function settingsIn(worker: string): URLSearchParams {
  return new URLSearchParams(worker.slice(scopeOf(worker).length + SEPARATOR.length));
}

// Where the files are that the package loads while it runs. It finds them beside its own modules, as most bundlers do; a program names the others.
import { CotensorError } from "./errors.js";
import { baseAddress } from "./node.js";

/** Addresses of files. Those that are missing are found by the package. Relative ones are relative to the page. */
export interface Addresses {
  /** `dist/wasm/cotensor_bg.wasm`. */
  readonly core?: string | URL;
  /** `dist/models/cotensor_models_bg.wasm`. */
  readonly models?: string | URL;
  /** `dist/worker/main.js` with its imports, or the program's bundle of `cotensor/worker`. On the site of the page. */
  readonly worker?: string | URL;
  /** The folder with the `.wasm` files of onnxruntime-web, for the library that the package imports by itself. */
  readonly ortFiles?: string | URL;
}

/** The names of addresses. */
export const ADDRESSES = ["core", "models", "worker", "ortFiles"] as const;
export type AddressName = (typeof ADDRESSES)[number];

let known: Partial<Record<AddressName, URL>> = {};

/**
 * Sets the addresses of this thread, and of the workers that it starts. An attempt to load a file reads them anew: after a wrong address,
 * the program sets the right one and calls again.
 */
export function setAddresses(addresses: Addresses): void {
  const unknown = Object.keys(addresses).find((name) => !(ADDRESSES as readonly string[]).includes(name));
  if (unknown !== undefined) throw new CotensorError("Invalid", `addresses: no file of the package is named ${unknown}; known: ${ADDRESSES.join(", ")}`);
  known = Object.fromEntries(ADDRESSES.flatMap((name) => (addresses[name] === undefined ? [] : [[name, absolute(name, addresses[name])]])));
}

/** The address that the program set; nothing if the package finds the file. */
export function addressOf(name: AddressName): URL | undefined {
  return known[name];
}

/** The absolute form of an address that the program gave as `field`. Workers have another base than the page. */
export function absoluteUrl(field: string, address: string | URL): URL {
  try {
    return new URL(address, baseAddress());
  } catch {
    throw new CotensorError("Invalid", `${field}: ${JSON.stringify(String(address))} is not a URL here`);
  }
}

function absolute(name: AddressName, address: string | URL): URL {
  const url = absoluteUrl(`addresses: ${name}`, address);
  if (name === "ortFiles" && !url.pathname.endsWith("/")) url.pathname += "/";
  return url;
}

import { CotensorError } from "../errors.js";
import { ask, body, checkAnswer, send, STALL_MILLISECONDS, versionOf, type Version } from "./body.js";
import type { WeightCache } from "./cache.js";
import type { BlobRef, Manifest } from "./manifest.js";

/** Options of a download. */
export interface DownloadOptions {
  /** The length of the file in bytes; another length is an error. */
  readonly size?: number;
  /** The BLAKE3 hash of the file; other bytes are an error. A stored file with this hash is used without a request. */
  readonly hash?: string;
  /** 4 GiB by default. */
  readonly maxBytes?: number;
  readonly signal?: AbortSignal;
  /** Called with the bytes so far and the length, if the server says it. */
  readonly progress?: (received: number, total: number | undefined) => void;
  /**
   * Whether the server is asked if a stored file is still the newest. By default it is asked, except for a file of a fixed
   * revision: a URL with `/resolve/` and a commit of 40 hexadecimal digits, or with `hash`. A server that says neither `ETag`
   * nor `Last-Modified` sends the file again.
   */
  readonly revalidate?: boolean;
  /** How often a broken connection is continued; 3 times by default. */
  readonly retries?: number;
  /** After so many milliseconds without a byte a connection counts as broken, so that another tab can take over; 30,000 by default. */
  readonly stallMilliseconds?: number;
}

/** A downloaded file. */
export interface Downloaded extends BlobRef {
  readonly url: string;
  /** The file. Its bytes are read when they are needed. */
  readonly blob: Blob;
  /** Bytes of the file that were fetched by this call; 0 if it was stored. */
  readonly fetchedBytes: number;
  /** Whether the server could not be asked for a newer file. */
  readonly isStale: boolean;
}

/** What is stored beside the blob of a file. */
interface FileDocument {
  readonly url: string;
  readonly version: Version;
}

const MAX_BYTES = 4 * 2 ** 30;

/**
 * A file from a server, stored in the cache. A stored file is used again: without any request if its revision is fixed, else after
 * a `HEAD` request shows the same version. All tabs and workers of the site download a URL once. An incomplete file is never stored.
 */
export async function download(cache: WeightCache, address: string | URL, options: DownloadOptions = {}): Promise<Downloaded> {
  const url = checkedUrl(address);
  options.signal?.throwIfAborted();
  return cache.locks.request(`cotensor:${url}`, { signal: options.signal }, async () => {
    const stored = await cache.manifest(keyOf(url));
    const known = stored && (await storedFile(cache, url, stored, options));
    if (stored && known) {
      if (!(options.revalidate ?? !isFixed(url, options))) return known;
      const state = await compare(url, (stored.document as FileDocument).version, options);
      if (state !== "other") return { ...known, isStale: state === "unknown" };
    }
    return fetchFile(cache, url, options);
  });
}

/** Removes a downloaded file from the cache, for example once a model is imported from it. Blobs that a manifest names stay. */
export async function forgetDownload(cache: WeightCache, address: string | URL): Promise<void> {
  await cache.remove(keyOf(checkedUrl(address)));
}

/** The key of a file's manifest, which is none of an imported model. */
function keyOf(url: string): string {
  return `file ${url}`;
}

async function fetchFile(cache: WeightCache, url: string, options: DownloadOptions): Promise<Downloaded> {
  const { signal, maxBytes = MAX_BYTES, size, hash, retries = 3, progress, stallMilliseconds = STALL_MILLISECONDS } = options;
  // The browser's own cache would keep a second copy of the file.
  const requestCache = cache.home === "opfs" ? "no-store" : "default";
  const abort = new AbortController();
  const whole = signal ? AbortSignal.any([signal, abort.signal]) : abort.signal;
  try {
    const manifest = await cache.replace(keyOf(url), async (put): Promise<FileDocument> => {
      const response = await send(url, { cache: requestCache, signal: whole }, stallMilliseconds);
      checkAnswer(url, response);
      const blob = await put(body(response, { url, maxBytes, size, signal, retries, cache: requestCache, stallMilliseconds, progress }));
      if (hash !== undefined && blob.hash !== hash) {
        throw new CotensorError("Corrupt", `${url}: the file has the BLAKE3 hash ${blob.hash}, ${hash} is expected`);
      }
      return { url, version: versionOf(response) };
    });
    const [blob] = manifest.blobs;
    const file = blob && (await cache.blob(blob));
    if (!file) throw new CotensorError("Io", `${url}: the stored file was removed at once; free space on the disk`);
    return { url, ...blob, blob: file, fetchedBytes: blob.size, isStale: false };
  } finally {
    // Ends a transfer that failed on this side.
    abort.abort();
  }
}

/** The stored file, if it is the one that the options describe. */
async function storedFile(cache: WeightCache, url: string, manifest: Manifest, options: DownloadOptions): Promise<Downloaded | undefined> {
  const [ref] = manifest.blobs;
  if (!ref || ref.size !== (options.size ?? ref.size) || ref.hash !== (options.hash ?? ref.hash)) return undefined;
  const blob = await cache.blob(ref);
  return blob && { url, ...ref, blob, fetchedBytes: 0, isStale: false };
}

/**
 * Compares a stored version with the server's, by a `HEAD` request: a conditional `GET` would need the permission of another site
 * for its header.
 */
async function compare(url: string, version: Version, { signal, stallMilliseconds }: DownloadOptions): Promise<"same" | "other" | "unknown"> {
  let response;
  try {
    response = await ask(url, signal ?? null, stallMilliseconds);
  } catch (error) {
    if (error instanceof CotensorError) return "unknown";
    throw error;
  }
  // A file that the server removed or no longer gives is not used again. A failing server says nothing about it.
  if (response.status >= 500) return "unknown";
  if (!response.ok) return "other";
  const { etag, modified, length } = versionOf(response);
  const isKnown = etag !== null || modified !== null;
  return isKnown && etag === version.etag && modified === version.modified && length === version.length ? "same" : "other";
}

/** Whether a file cannot change: its URL names a commit. */
export function isFixed(url: string, options: DownloadOptions = {}): boolean {
  return options.hash !== undefined || /\/resolve\/[0-9a-f]{40}\//.test(new URL(url).pathname);
}

function checkedUrl(address: string | URL): string {
  const base = (globalThis.location as Location | undefined)?.href;
  let url;
  try {
    url = new URL(address, base);
  } catch {
    throw new CotensorError("Invalid", `url ${JSON.stringify(String(address))}: it is not a URL`);
  }
  if (url.protocol !== "https:" && url.protocol !== "http:") {
    throw new CotensorError("Invalid", `url ${url.href}: http or https is required`);
  }
  url.hash = "";
  return url.href;
}

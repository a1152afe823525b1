// The files of a model: a folder of a web server, or a repository of the hub.
import { CotensorError } from "../errors.js";
import { baseAddress } from "../node.js";
import { ask, bytesOfAnswer, checkAnswer, checkContent, isSameVersion, send, STALL_MILLISECONDS, versionOf, type Version as FileVersion } from "../weights/body.js";
import { isUnwritable, type WeightCache } from "../weights/cache.js";
import { hashOf } from "../weights/hash.js";
import { download, isFixed } from "../weights/download.js";

/** Where models are found by name. */
export interface ModelSources {
  /** The URL of a folder with a folder for each name. Without it, names are those of the hub. */
  readonly models?: string | URL;
  /** The hub's address. */
  readonly endpoint?: string;
  /** The hub's branch, tag or commit; `main` by default. */
  readonly revision?: string;
}

/** Called while a file arrives. The total is missing where the server does not say it. */
export type Progress = (file: string, receivedBytes: number, totalBytes: number | undefined) => void;

export const HUB_ENDPOINT = "https://huggingface.co";
/** The most bytes of a file with settings, tokens or labels. */
const SMALL_FILE_BYTES_MAX = 256 * 2 ** 20;
/** The most bytes of a graph, or of a file with weights: what one array of a browser holds. */
const LARGE_FILE_BYTES_MAX = 2 ** 31 - 1;
const LIMITS = { maxBytes: LARGE_FILE_BYTES_MAX, size: undefined, signal: undefined, cache: "no-store" } as const;

/** A large file that is kept while calls use it. */
interface KeptFile {
  users: number;
  bytes: Promise<Uint8Array<ArrayBuffer>> | undefined;
}

/** The files of one model. */
export class ModelFolder {
  readonly #answers = new Map<string, Promise<FileVersion | undefined>>();
  readonly #versions = new Map<string, Promise<string | undefined>>();
  readonly #kept = new Map<string, KeptFile>();
  constructor(
    /** The name that the program gave. */
    readonly modelId: string,
    readonly url: URL,
    readonly cache: WeightCache,
    private readonly stallMilliseconds: number = STALL_MILLISECONDS,
  ) {}

  static of(modelId: string, sources: ModelSources, cache: WeightCache): ModelFolder {
    return new ModelFolder(modelId, folderUrl(modelId, sources), cache);
  }

  /**
   * The version of a file; nothing if there is no such file. Asked once. Of a server that says neither `ETag` nor `Last-Modified`,
   * the hash of the file, which is read for it.
   */
  version(file: string, progress?: Progress): Promise<string | undefined> {
    const known = this.#versions.get(file) ?? this.#versionOf(file, progress);
    this.#versions.set(file, known);
    known.catch(() => this.#versions.delete(file));
    return known;
  }

  /** Whether the folder has the file. */
  async has(file: string): Promise<boolean> {
    return (await this.#ask(file)) !== undefined;
  }

  /** A small file, stored in the browser; nothing if there is no such file. */
  async text(file: string): Promise<string | undefined> {
    try {
      // A file of the disk needs no copy.
      if (this.url.protocol === "file:") return new TextDecoder().decode(await this.bytes(file));
      const { blob } = await download(this.cache, this.#urlOf(file), { maxBytes: SMALL_FILE_BYTES_MAX, stallMilliseconds: this.stallMilliseconds });
      const text = await blob.text();
      checkContent(this.#urlOf(file).href, new TextEncoder().encode(text.slice(0, 64)));
      return text;
    } catch (error) {
      if (isMissing(error)) return undefined;
      if (isUnwritable(error)) return new TextDecoder().decode(await this.bytes(file));
      throw error;
    }
  }

  /**
   * Runs `use`. From `keep(file)` to its end, the bytes of that file stay in memory once they are read, so that they are downloaded
   * once: the version of a file may be the hash of its bytes, and two imports may read the same file.
   */
  async keeping<Value>(use: (keep: (file: string) => void) => Promise<Value>): Promise<Value> {
    const mine = new Set<string>();
    const keep = (file: string): void => {
      if (mine.has(file)) return;
      const kept = this.#kept.get(file) ?? { users: 0, bytes: undefined };
      kept.users += 1;
      this.#kept.set(file, kept);
      mine.add(file);
    };
    try {
      return await use(keep);
    } finally {
      for (const file of mine) {
        const kept = this.#kept.get(file);
        if (kept && (kept.users -= 1) === 0) this.#kept.delete(file);
      }
    }
  }

  /** A large file, not stored: its parts are. The caller does not write to the bytes. */
  async bytes(file: string, progress?: Progress): Promise<Uint8Array<ArrayBuffer>> {
    const kept = this.#kept.get(file);
    if (!kept) return this.#read(file, progress);
    const reading = (kept.bytes ??= this.#read(file, progress));
    try {
      return await reading;
    } catch (error) {
      // The next call tries again.
      if (kept.bytes === reading) kept.bytes = undefined;
      throw error;
    }
  }

  async #read(file: string, progress?: Progress): Promise<Uint8Array<ArrayBuffer>> {
    const url = this.#urlOf(file).href;
    const response = await send(url, { cache: "no-store" }, this.stallMilliseconds);
    checkAnswer(url, response);
    await this.#checkVersion(file, response);
    const bytes = await bytesOfAnswer(response, { ...this.#limits(url), retries: 3, progress: (received, total) => progress?.(file, received, total) });
    checkContent(url, bytes);
    return bytes;
  }

  /** Some bytes of a file. */
  async range(file: string, offset: number, length: number): Promise<Uint8Array<ArrayBuffer>> {
    const url = this.#urlOf(file).href;
    if (length === 0) return new Uint8Array();
    const response = await send(url, { headers: { range: `bytes=${offset}-${offset + length - 1}` }, cache: "no-store" }, this.stallMilliseconds);
    checkAnswer(url, response);
    if (response.status !== 206) {
      await response.body?.cancel();
      throw new CotensorError("Unsupported", `${url}: the server sends whole files only, not ranges of bytes`);
    }
    await this.#checkVersion(file, response);
    return bytesOfAnswer(response, { ...this.#limits(url), size: length, retries: 0, progress: undefined });
  }

  #limits(url: string): typeof LIMITS & { url: string; stallMilliseconds: number } {
    return { ...LIMITS, url, stallMilliseconds: this.stallMilliseconds };
  }

  #urlOf(file: string): URL {
    return new URL(file, this.url);
  }

  async #versionOf(file: string, progress?: Progress): Promise<string | undefined> {
    const answer = await this.#ask(file);
    if (answer === undefined) return undefined;
    const { etag, modified, length } = answer;
    if (etag !== null || modified !== null || isFixed(this.#urlOf(file).href)) return [etag, modified, length].join(" ");
    return hashOf(this.cache.newHasher, await this.bytes(file, progress));
  }

  /** What the server says about a file; nothing if there is no such file. Asked once. */
  #ask(file: string): Promise<FileVersion | undefined> {
    const known = this.#answers.get(file) ?? this.#request(this.#urlOf(file).href);
    this.#answers.set(file, known);
    known.catch(() => this.#answers.delete(file));
    return known;
  }

  /** Refuses an answer of another version than the one under which the file is known: its parts, and what is stored of it, would not fit. */
  async #checkVersion(file: string, response: Response): Promise<void> {
    const known = await this.#answers.get(file)?.catch(() => undefined);
    if (known === undefined || isSameVersion(known, versionOf(response))) return;
    this.#answers.clear();
    this.#versions.clear();
    await response.body?.cancel();
    throw new CotensorError("Conflict", `${this.#urlOf(file).href}: the file changed on the server; open the model again`);
  }

  async #request(url: string): Promise<FileVersion | undefined> {
    const response = await ask(url, null, this.stallMilliseconds);
    try {
      checkAnswer(url, response);
    } catch (error) {
      if (isMissing(error)) return undefined;
      throw error;
    }
    return versionOf(response);
  }
}

/** The file at `location`, which is relative to another file. */
export function beside(file: string, location: string): string {
  return file.slice(0, file.lastIndexOf("/") + 1) + location;
}

/** The folder of a model: a URL or a path as it is, a name in `models` or on the hub. */
export function folderUrl(modelId: string, { models, endpoint = HUB_ENDPOINT, revision = "main" }: ModelSources): URL {
  const base = baseAddress();
  const folder = (path: string, from: string | URL | undefined): URL => {
    try {
      const url = new URL(path, from);
      // Files are resolved below it.
      if (!url.pathname.endsWith("/")) url.pathname += "/";
      return url;
    } catch {
      throw new CotensorError("Invalid", `modelId: ${JSON.stringify(path)} is not a URL here`);
    }
  };
  if (/^(https?:|file:|\.{0,2}\/)/.test(modelId)) return folder(modelId, base);
  // The names of the hub: an owner and a model, or a model alone.
  if (!/^[\w-][\w.-]{0,95}(\/[\w-][\w.-]{0,95})?$/.test(modelId)) {
    throw new CotensorError("Invalid", `modelId: ${JSON.stringify(modelId)} is not a name of a model; pass OWNER/NAME, a path that starts with /, or a URL`);
  }
  if (models !== undefined) return folder(`${modelId}/`, folder(String(models), base));
  if (!/^[\w.-]{1,100}(\/[\w.-]{1,100})*$/.test(revision) || revision.includes("..")) {
    throw new CotensorError("Invalid", `revision: ${JSON.stringify(revision)} is not a branch, tag or commit`);
  }
  return folder(`${modelId}/resolve/${revision}/`, folder(endpoint, base));
}

function isMissing(error: unknown): boolean {
  return error instanceof CotensorError && error.kind === "NotFound";
}

import { CotensorError } from "../errors.js";
import { fileAnswer, isNode } from "../node.js";

/** Limits of one download. */
export interface BodyOptions {
  readonly url: string;
  readonly maxBytes: number;
  /** The length that is expected, if it is known. */
  readonly size: number | undefined;
  readonly signal: AbortSignal | undefined;
  /** How often a broken connection is continued. */
  readonly retries: number;
  readonly cache: RequestCache;
  /** A server that sends nothing for so long is given up. */
  readonly stallMilliseconds: number;
  readonly progress: ((received: number, total: number | undefined) => void) | undefined;
}

/** What tells two versions of a file apart, and the length, as far as the server says them. */
export interface Version {
  readonly etag: string | null;
  readonly modified: string | null;
  readonly length: number | undefined;
}

/** How long a server may send nothing, unless the program says otherwise. */
export const STALL_MILLISECONDS = 30_000;

/** Sends a request. Failures name the URL. */
export async function send(url: string, init: RequestInit, stallMilliseconds = STALL_MILLISECONDS): Promise<Response> {
  if (isNode && url.startsWith("file:")) return fileAnswer(url, init);
  const stalled = new AbortController();
  const timer = setTimeout(() => stalled.abort(), stallMilliseconds);
  const signal = init.signal ? AbortSignal.any([init.signal, stalled.signal]) : stalled.signal;
  try {
    return await fetch(url, { ...init, signal });
  } catch (error) {
    init.signal?.throwIfAborted();
    if (stalled.signal.aborted) throw new CotensorError("Io", `${url}: no answer within ${stallMilliseconds / 1000} s; try again`);
    const way = "check the address and the connection; another site must allow this one (CORS)";
    throw new CotensorError("Io", `${url}: no answer (${messageOf(error)}); ${way}`);
  } finally {
    clearTimeout(timer);
  }
}

/** What a server says about a file, without its bytes. Signed addresses and some servers answer only `GET`. */
export async function ask(url: string, signal: AbortSignal | null, stallMilliseconds = STALL_MILLISECONDS): Promise<Response> {
  const response = await send(url, { method: "HEAD", cache: "no-store", signal }, stallMilliseconds);
  if (![400, 403, 405, 501].includes(response.status)) return response;
  const whole = await send(url, { cache: "no-store", signal }, stallMilliseconds);
  await whole.body?.cancel();
  return whole;
}

/** Checks that an answer is the file. */
export function checkAnswer(url: string, response: Response): void {
  const { status, headers } = response;
  if (status === 404 || status === 410) throw new CotensorError("NotFound", `${url}: the server has no such file (status ${status})`);
  if (status === 401 || status === 403) {
    throw new CotensorError("Refused", `${url}: the server refuses the file (status ${status}); it may need an account's permission`);
  }
  if (!response.ok) throw new CotensorError("Io", `${url}: the server answered with status ${status}; try again later`);
  const isPage = headers.get("content-type")?.startsWith("text/html") ?? false;
  if (isPage && !/\.html?$/.test(new URL(url).pathname)) {
    const reason = "development servers answer so when a file is missing";
    throw new CotensorError("NotFound", `${url}: the server sent an HTML page instead of the file; ${reason}. Check the path`);
  }
}

/** All bytes of an answer. */
export async function bytesOfAnswer(first: Response, options: BodyOptions): Promise<Uint8Array<ArrayBuffer>> {
  const parts: Uint8Array<ArrayBuffer>[] = [];
  for await (const part of body(first, options)) parts.push(part);
  const [only, ...others] = parts;
  if (only && others.length === 0) return only;
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.byteLength, 0));
  let offset = 0;
  for (const part of parts) {
    whole.set(part, offset);
    offset += part.byteLength;
  }
  return whole;
}

/** Checks that bytes are not those of a page or of a pointer, which servers send in place of a file. */
export function checkContent(url: string, bytes: Uint8Array): void {
  const start = new TextDecoder().decode(bytes.subarray(0, 64)).trimStart().toLowerCase();
  if (start.startsWith("version https://git-lfs")) {
    throw new CotensorError("Corrupt", `${url}: the server sent a pointer of Git LFS instead of the file; run \`git lfs pull\` in its folder`);
  }
  if (start.startsWith("<!doctype html") || start.startsWith("<html")) {
    throw new CotensorError("NotFound", `${url}: the server sent an HTML page instead of the file. Check the path`);
  }
}

/** The version that an answer describes. The length is unknown when the body is compressed on its way. */
export function versionOf({ headers }: Response): Version {
  const length = headers.get("content-encoding") === null ? Number(headers.get("content-length") ?? NaN) : NaN;
  return {
    etag: headers.get("etag"),
    modified: headers.get("last-modified"),
    length: Number.isSafeInteger(length) ? length : undefined,
  };
}

/** Whether two answers describe one version, as far as the server says. Their bodies may be encoded differently. */
export function isSameVersion(a: Version, b: Version): boolean {
  const isDated = a.modified !== null && b.modified !== null;
  if (a.etag !== null && b.etag !== null && opaqueTag(a.etag) === opaqueTag(b.etag)) return true;
  // Servers with several encodings of a file, and groups of servers, have several tags for it.
  if (a.etag !== null && b.etag !== null && !isDated) return false;
  return !isDated || a.modified === b.modified;
}

/** An `ETag` without the marks of a body that is compressed on its way: `W/`, and the suffix of some servers. */
function opaqueTag(etag: string): string {
  return etag.replace(/^W\//, "").replace(/(-{1,2}|;)(gzip|br|zstd|deflate)"$/, '"');
}

/**
 * The bytes of an answer, in parts. A connection that breaks is continued by a `Range` request if the server says that the file
 * is the same. Too few and too many bytes are errors.
 */
export async function* body(first: Response, options: BodyOptions): AsyncGenerator<Uint8Array<ArrayBuffer>> {
  const { url, maxBytes, signal, progress } = options;
  const version = versionOf(first);
  let total = options.size ?? version.length;
  // Other sites do not see how an answer is encoded: its length may be that of the compressed body.
  const mayBeCompressed = first.type === "cors" && options.size === undefined;
  if (version.length !== undefined && options.size !== undefined && version.length !== options.size) {
    await first.body?.cancel();
    throw new CotensorError("Corrupt", `${url}: ${options.size} bytes are expected, the server announces ${version.length}`);
  }
  if (total !== undefined && total > maxBytes) {
    await first.body?.cancel();
    throw new CotensorError("Refused", `${url}: ${total} bytes; maxBytes allows ${maxBytes}`);
  }
  const wholeLength = async (): Promise<number | undefined> => (progress ? lengthOf(options) : undefined);
  let shown = (mayBeCompressed ? await wholeLength() : undefined) ?? total ?? (await wholeLength());
  let received = 0;
  let response = first;
  for (let retries = options.retries; ; retries -= 1) {
    const broken = { error: undefined as unknown };
    for await (const part of streamParts(response, broken, options.stallMilliseconds)) {
      received += part.byteLength;
      if (received > maxBytes) throw new CotensorError("Refused", `${url}: more than ${maxBytes} bytes, which maxBytes allows`);
      if (total !== undefined && received > total) {
        if (!mayBeCompressed) throw new CotensorError("Corrupt", `${url}: more than the ${total} bytes that are expected`);
        total = undefined;
        shown = await wholeLength();
      }
      yield part;
      progress?.(received, shown);
    }
    signal?.throwIfAborted();
    // The browser compares the length of a body on its way.
    if (broken.error === undefined && (total === undefined || received === total || mayBeCompressed)) return;
    const next = retries > 0 ? await rest(options, version, received) : undefined;
    if (next) {
      response = next;
    } else if (broken.error === undefined) {
      throw new CotensorError("Corrupt", `${url}: the server sent ${received} of ${total} bytes`);
    } else {
      throw new CotensorError("Io", `${url}: the connection broke after ${received} bytes (${messageOf(broken.error)}); try again`);
    }
  }
}

/** The length of a file whose server compresses it, or does not say the length; nothing if the server gives no parts. */
async function lengthOf({ url, signal, stallMilliseconds }: BodyOptions): Promise<number | undefined> {
  try {
    // Parts of a file are never compressed.
    const response = await send(url, { headers: { range: "bytes=0-0" }, cache: "no-store", signal: signal ?? null }, stallMilliseconds);
    await response.body?.cancel();
    const [, length] = /\/(\d+)$/.exec(response.headers.get("content-range") ?? "") ?? [];
    return length === undefined ? undefined : Number(length);
  } catch {
    // The download itself says what is wrong.
    return undefined;
  }
}

/** The answer with the bytes from `offset` on; nothing if the server does not give them. */
async function rest(options: BodyOptions, version: Version, offset: number): Promise<Response | undefined> {
  // A weak ETag does not promise equal bytes.
  const isExact = version.etag !== null && !version.etag.startsWith("W/");
  if (!isExact && version.modified === null) return undefined;
  const { url, signal, cache, stallMilliseconds } = options;
  const init = { headers: { range: `bytes=${offset}-` }, cache, signal: signal ?? null };
  const response = await send(url, init, stallMilliseconds).catch(() => undefined);
  if (!response) return undefined;
  const { etag, modified } = versionOf(response);
  const range = response.headers.get("content-range");
  const continues = range === null || range.startsWith(`bytes ${offset}-`);
  if (response.status === 206 && continues && etag === version.etag && modified === version.modified) return response;
  await response.body?.cancel();
  return undefined;
}

/** The parts of an answer's body. They end early when the connection breaks or stalls; `broken` then has the error. */
async function* streamParts(response: Response, broken: { error: unknown }, stallMilliseconds: number): AsyncGenerator<Uint8Array<ArrayBuffer>> {
  // Not all browsers iterate over streams.
  const reader = response.body?.getReader();
  if (!reader) return;
  const read = async (): Promise<Uint8Array<ArrayBuffer> | undefined> => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const stall = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(new Error(`no bytes for ${stallMilliseconds / 1000} s`)), stallMilliseconds);
    });
    try {
      return (await Promise.race([reader.read(), stall])).value as Uint8Array<ArrayBuffer> | undefined;
    } catch (error) {
      broken.error = error;
      return undefined;
    } finally {
      clearTimeout(timer);
    }
  };
  try {
    for (let part = await read(); part; part = await read()) yield part;
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

import { CotensorError } from "../errors.js";

/** The content of a file that is written: at once, or in parts that are never all in memory. */
export type Content = Uint8Array<ArrayBuffer> | Blob | AsyncIterable<Uint8Array<ArrayBuffer>>;

/** Files by name. A file that can be read is complete: writing replaces it as a whole, or not at all. */
export interface Folder {
  /** Where the files are. */
  readonly home: "opfs" | "memory";

  /** The file, whose bytes are read when they are needed. */
  read(name: string): Promise<Blob | undefined>;

  /** Bytes of the file. */
  size(name: string): Promise<number | undefined>;

  /** Writes a whole file. Without room, an `OverBudget` error; then the file is as before. */
  write(name: string, content: Content): Promise<void>;

  /** Gives a file another name, and replaces the file of that name. */
  rename(from: string, to: string): Promise<void>;

  /** Names and bytes of all files. */
  list(): Promise<Map<string, number>>;

  /** Removes a file; nothing happens without it. */
  remove(name: string): Promise<void>;
}

/** The folders of the cache. */
export interface Folders {
  readonly home: "opfs" | "memory";
  /** Why the files are in memory. */
  readonly reason?: string;
  open(name: string): Promise<Folder>;
}

/** Checks a name of a file. The names of the cache are hashes, so that any key or URL can have a file. */
export function checkName(name: string): void {
  if (!/^[a-z0-9_][a-z0-9_.]{0,199}$/.test(name)) {
    throw new CotensorError("Invalid", `file name ${JSON.stringify(name)}: 1 to 200 characters of a-z, 0-9, _ and . are required`);
  }
}

/** The parts of some content, in order. */
export async function* parts(content: Content): AsyncGenerator<Uint8Array<ArrayBuffer>> {
  if (content instanceof Uint8Array) {
    yield content;
  } else if (content instanceof Blob) {
    yield* blobParts(content);
  } else {
    yield* content;
  }
}

/** Bytes that are read from a blob at once. */
const PART_BYTES = 4 * 2 ** 20;

/** The bytes of a blob in parts, so that a large file is never whole in memory. */
export async function* blobParts(blob: Blob): AsyncGenerator<Uint8Array<ArrayBuffer>> {
  for (let offset = 0; offset < blob.size; offset += PART_BYTES) {
    yield new Uint8Array(await blob.slice(offset, offset + PART_BYTES).arrayBuffer());
  }
}

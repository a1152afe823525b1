import { CotensorError } from "../errors.js";

/** A stored blob: its BLAKE3 hash (64 lowercase hexadecimal digits), and its bytes. */
export interface BlobRef {
  readonly hash: string;
  readonly size: number;
}

/** The entry of one imported model or downloaded file: the blobs it consists of, and a document in JSON. */
export interface Manifest {
  readonly key: string;
  readonly blobs: readonly BlobRef[];
  readonly document: unknown;
  /** When it was last read, in milliseconds since 1970, to the minute. */
  readonly used: number;
}

export const MANIFEST_BYTES_MAX = 16 * 2 ** 20;
const BLOBS_MAX = 100_000;
const KEY_LENGTH_MAX = 4096;

/** Checks a key. */
export function checkKey(key: string): void {
  if (typeof key !== "string" || key === "" || key.length > KEY_LENGTH_MAX) {
    throw new CotensorError("Invalid", `key: a text of 1 to ${KEY_LENGTH_MAX} characters is required`);
  }
}

/** The text of a manifest. */
export function manifestText(manifest: Manifest): Uint8Array<ArrayBuffer> {
  const wrong = reasonAgainst(manifest);
  if (wrong) throw new CotensorError("Invalid", `manifest of ${manifest.key}: ${wrong}`);
  const text = new TextEncoder().encode(JSON.stringify(manifest));
  if (text.byteLength > MANIFEST_BYTES_MAX) {
    const message = `${text.byteLength} bytes; at most ${MANIFEST_BYTES_MAX} are allowed. Store large parts as blobs`;
    throw new CotensorError("Invalid", `manifest of ${manifest.key}: ${message}`);
  }
  return text;
}

/** The manifest in a file; nothing if the file holds no manifest of that key. */
export async function parsedManifest(file: Blob, key?: string): Promise<Manifest | undefined> {
  if (file.size > MANIFEST_BYTES_MAX) return undefined;
  try {
    const manifest = JSON.parse(await file.text()) as Manifest;
    return reasonAgainst(manifest) || (key !== undefined && manifest.key !== key) ? undefined : manifest;
  } catch {
    return undefined;
  }
}

function reasonAgainst(manifest: Manifest): string | undefined {
  if (typeof manifest !== "object" || manifest === null) return "it is not an object";
  const { key, blobs, used } = manifest;
  if (typeof key !== "string" || typeof used !== "number") return "key and used are required";
  if (!Array.isArray(blobs) || blobs.length > BLOBS_MAX) return `blobs: an array of at most ${BLOBS_MAX} is required`;
  const wrong = (blobs as readonly (BlobRef | null)[]).findIndex((blob) => {
    return !/^[0-9a-f]{64}$/.test(blob?.hash ?? "") || !Number.isSafeInteger(blob?.size) || (blob?.size ?? -1) < 0;
  });
  return wrong < 0 ? undefined : `blobs[${wrong}]: a hash of 64 lowercase hexadecimal digits and a size are required`;
}

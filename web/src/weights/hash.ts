/** Computes a BLAKE3 hash of bytes that come in parts. The module of models has one. */
export interface Hasher {
  update(bytes: Uint8Array): void;
  /** The hash as 64 lowercase hexadecimal digits. The hasher is not used afterwards. */
  digest(): string;
}

/** Makes a hasher. */
export type NewHasher = () => Hasher;

/** The hash of bytes. */
export function hashOf(newHasher: NewHasher, bytes: Uint8Array): string {
  const hasher = newHasher();
  hasher.update(bytes);
  return hasher.digest();
}

/** The hash of a text. */
export function hashText(newHasher: NewHasher, text: string): string {
  return hashOf(newHasher, new TextEncoder().encode(text));
}

/** Computes a BLAKE3 hash of bytes that come in parts. The module of models has one. */
export interface Hasher {
  update(bytes: Uint8Array): void;
  /** The hash as 64 lowercase hexadecimal digits. The hasher is not used afterwards. */
  digest(): string;
}

/** Makes a hasher. */
export type NewHasher = () => Hasher;

/** The hash of a text. */
export function hashText(newHasher: NewHasher, text: string): string {
  const hasher = newHasher();
  hasher.update(new TextEncoder().encode(text));
  return hasher.digest();
}

/** The SHA-256 of bytes as hexadecimal digits; nothing where the browser computes no hashes, as on pages without https. */
export async function sha256(data: ArrayBufferView | Blob): Promise<string | undefined> {
  const { subtle } = globalThis.crypto;
  if ((subtle as SubtleCrypto | undefined) === undefined) return undefined;
  const bytes = data instanceof Blob ? await data.arrayBuffer() : data;
  const hash = new Uint8Array(await subtle.digest("SHA-256", bytes as BufferSource));
  return Array.from(hash, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

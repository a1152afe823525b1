// Checks where onnxruntime-web loads its files from. It keeps a failed start for ever: a program could not correct a wrong address without
// loading its page again.
import { CotensorError } from "../errors.js";
import { baseAddress, isNode } from "../node.js";
import { checkAnswer, send } from "../weights/body.js";
import type { Ort } from "./ort.js";

/** The files of the builds, of which each loads one. */
const FILES = ["", ".asyncify", ".jspi", ".jsep"].map((build) => `ort-wasm-simd-threaded${build}.wasm`);
/** The first bytes of a WebAssembly module. */
const MAGIC = [0, 0x61, 0x73, 0x6d];

/** The libraries whose files were found, by a class of theirs. */
const found = new WeakSet<object>();

/** Checks the addresses in `env.wasm.wasmPaths`, before the first session of a library. Without them, the library finds its files. */
export async function checkFiles(ort: Ort): Promise<void> {
  const { wasmPaths, wasmBinary } = ort.env.wasm ?? {};
  if (isNode || found.has(ort.InferenceSession) || wasmPaths === undefined || wasmBinary !== undefined) return;
  const files = typeof wasmPaths === "string" ? FILES.map((file) => wasmPaths + file) : wasmPaths.wasm === undefined ? [] : [String(wasmPaths.wasm)];
  const reasons: string[] = [];
  for (const file of files) {
    try {
      await checkModule(new URL(file, baseAddress()).href);
      found.add(ort.InferenceSession);
      return;
    } catch (error) {
      reasons.push(error instanceof Error ? error.message : String(error));
    }
  }
  if (reasons.length === 0) return;
  const way = "correct the address, and call again";
  throw new CotensorError("NotFound", `the files of onnxruntime-web are not at ${files[0]} (${reasons[0]}), where env.wasm.wasmPaths or setAddresses() says; ${way}`);
}

async function checkModule(url: string): Promise<void> {
  const response = await send(url, {});
  const reader = response.body?.getReader();
  try {
    checkAnswer(url, response);
    const { value = new Uint8Array() } = (await reader?.read()) ?? {};
    if (!MAGIC.every((byte, index) => value[index] === byte)) throw new CotensorError("Corrupt", `${url} is not a WebAssembly module`);
  } finally {
    // The library reads it from the beginning.
    await reader?.cancel().catch(() => undefined);
  }
}

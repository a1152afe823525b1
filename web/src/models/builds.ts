// The build of onnxruntime-web for a program that brings none: without a GPU, the small one.
import { addressOf } from "../addresses.js";
import type { KnownOrt, Ort } from "../engine/ort.js";
import { CotensorError } from "../errors.js";
import { importUnbundled, isNode } from "../node.js";
import type { Device } from "../types.js";

/** A build, and the file that it loads. */
interface Build {
  readonly name: string;
  readonly file?: string;
  readonly load: () => Promise<unknown>;
}

const CPU: Build = { name: "onnxruntime-web/wasm", file: "ort-wasm-simd-threaded.wasm", load: () => import("onnxruntime-web/wasm") };
const GPU: Build = { name: "onnxruntime-web/webgpu", file: "ort-wasm-simd-threaded.asyncify.wasm", load: () => import("onnxruntime-web/webgpu") };
/** The native library is faster than WebAssembly. */
const NODE: readonly Build[] = ["onnxruntime-node", "onnxruntime-web"].map((name) => ({ name, load: () => importUnbundled(name) }));

/** The builds that this thread has. */
const loaded = new Map<Build, Promise<Ort>>();

/** The library for a device. One that is loaded runs on the CPU, too. */
export async function importOrt(device: Device): Promise<Ort> {
  const builds = isNode ? NODE : device !== "cpu" ? [GPU] : loaded.has(GPU) ? [GPU, CPU] : [CPU, GPU];
  const reasons: string[] = [];
  for (const build of builds) {
    const loading = loaded.get(build) ?? load(build);
    loaded.set(build, loading);
    try {
      return await loading;
    } catch (error) {
      loaded.delete(build);
      reasons.push(`${build.name} cannot be imported (${String(error)})`);
    }
  }
  const inWorker = "WorkerGlobalScope" in globalThis;
  const page = "install it, name it in the page's import map, or pass the module as the option `ort`";
  const way = inWorker ? "a worker has no import map: pass the address of the module as the option `ort` of connectShared, or the module to serve()" : page;
  throw new CotensorError("Unsupported", `${reasons.join("; ")}; ${way}`);
}

async function load({ file, load }: Build): Promise<Ort> {
  const ort = (await load()) as Ort & KnownOrt;
  const folder = addressOf("ortFiles");
  if (folder && file !== undefined && ort.env.wasm) ort.env.wasm.wasmPaths = { wasm: new URL(file, folder).href };
  return ort;
}

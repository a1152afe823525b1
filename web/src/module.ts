// Loads the WebAssembly modules of the package.
import { addressOf, type AddressName } from "./addresses.js";
import { CotensorError } from "./errors.js";
import { readFile } from "./node.js";

type Init = (options: { module_or_path: URL | Uint8Array<ArrayBuffer> }) => Promise<unknown>;

/** A function that loads a module once, from the address of that name or from `own`. After a failed attempt, the next call tries again. */
export function moduleLoader(name: AddressName, own: () => URL, init: Init): () => Promise<unknown> {
  let loading: Promise<unknown> | undefined;
  const load = async (): Promise<unknown> => {
    let url: URL | undefined;
    try {
      url = addressOf(name) ?? own();
      return await init({ module_or_path: url.protocol === "file:" ? await readFile(url) : url });
    } catch (error) {
      const message = error instanceof Error ? error.message : String(error);
      const way = `name the file's address: setAddresses({ ${name}: … })`;
      throw new CotensorError("Io", `${url?.href ?? name}: this WebAssembly module of the package cannot be loaded (${message}); ${way}`);
    }
  };
  return () => {
    loading ??= load().catch((error: unknown) => {
      loading = undefined;
      throw error;
    });
    return loading;
  };
}

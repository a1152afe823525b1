// Loads the WebAssembly modules of the package.

type Init = (options: { module_or_path: URL | Uint8Array<ArrayBuffer> }) => Promise<unknown>;

/** A function that loads the module at `url` once. After a failed attempt, the next call tries again. */
export function moduleLoader(url: URL, init: Init): () => Promise<unknown> {
  let loading: Promise<unknown> | undefined;
  const load = async (): Promise<unknown> => init({ module_or_path: url.protocol === "file:" ? await readFile(url) : url });
  return () => {
    loading ??= load().catch((error: unknown) => {
      loading = undefined;
      throw error;
    });
    return loading;
  };
}

/** Node's `fetch` does not read files. */
async function readFile(url: URL): Promise<Uint8Array<ArrayBuffer>> {
  // A variable, so that no bundler looks for the module.
  const name = "node:fs/promises";
  const files = (await import(name)) as { readFile(url: URL): Promise<Uint8Array<ArrayBuffer>> };
  return files.readFile(url);
}

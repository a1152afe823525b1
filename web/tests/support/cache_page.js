// The cache of weights in a page or worker of a test, with short forms.
import { download, WeightCache } from "/index.js";

/** A hasher with the interface of the BLAKE3 one, which the module of models has. */
export function newHasher() {
  let [sum, count] = [0x811c9dc5, 0];
  const update = (bytes) => {
    for (const each of bytes) sum = Math.imul(sum ^ each, 0x01000193);
    count += bytes.length;
  };
  return { update, digest: () => ((sum >>> 0).toString(16) + count.toString(16).padStart(8, "0")).padStart(64, "0") };
}

/** Makes `cache`, `get(name)` from the server `remote`, `failure(promise)` and `files(folder)` global. */
export async function openCache(remote) {
  const cache = await WeightCache.open({ newHasher });
  const folder = async (name) => (await (await navigator.storage.getDirectory()).getDirectoryHandle("cotensor")).getDirectoryHandle(name);
  const files = async (name) => {
    const names = [];
    for await (const entry of (await folder(name)).values()) names.push(entry.name);
    return names.sort();
  };
  Object.assign(globalThis, {
    ...{ cache, files, folder },
    get: (name, options) => download(cache, remote + name, options),
    failure: (promise) => promise.then(() => undefined, ({ name, kind, message }) => ({ name, kind, message })),
  });
}

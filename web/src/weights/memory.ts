import { CotensorError } from "../errors.js";
import { checkName, parts, type Content, type Folder, type Folders } from "./folder.js";

/** Files in memory, for Node and for browsers that keep no files. They end with the page or worker. */
export class MemoryFolder implements Folder {
  readonly home = "memory";
  readonly #files = new Map<string, Blob>();

  read(name: string): Promise<Blob | undefined> {
    return Promise.resolve(this.#files.get(name));
  }

  size(name: string): Promise<number | undefined> {
    return Promise.resolve(this.#files.get(name)?.size);
  }

  async write(name: string, content: Content): Promise<void> {
    checkName(name);
    const all: Blob[] = [];
    // A blob's parts may be moved to the disk by the browser, so each part becomes a blob at once.
    for await (const part of parts(content)) all.push(new Blob([part]));
    this.#files.set(name, new Blob(all));
  }

  rename(from: string, to: string): Promise<void> {
    checkName(to);
    const file = this.#files.get(from);
    if (!file) return Promise.reject(new CotensorError("NotFound", `no file ${from}`));
    this.#files.delete(from);
    this.#files.set(to, file);
    return Promise.resolve();
  }

  list(): Promise<Map<string, number>> {
    return Promise.resolve(new Map([...this.#files].map(([name, file]) => [name, file.size])));
  }

  remove(name: string): Promise<void> {
    this.#files.delete(name);
    return Promise.resolve();
  }
}

/** Folders in memory. `reason` says why they are not in the file system. */
export class MemoryFolders implements Folders {
  readonly home = "memory";
  readonly #folders = new Map<string, MemoryFolder>();

  constructor(readonly reason: string) {}

  open(name: string): Promise<MemoryFolder> {
    const folder = this.#folders.get(name) ?? new MemoryFolder();
    this.#folders.set(name, folder);
    return Promise.resolve(folder);
  }
}

import { CotensorError } from "../errors.js";
import { checkName, parts, type Content, type Folder, type Folders } from "./folder.js";
import { MemoryFolders } from "./memory.js";

// TypeScript's library lacks the renaming of files.
type File = FileSystemFileHandle & { move?(name: string): Promise<void> };

/** The longest time between two attempts to remove a file that is locked, in milliseconds. */
const REMOVE_WAIT_MAX = 512;

/**
 * A folder of the Origin Private File System. It is used by its asynchronous functions, which exist in pages and in all kinds of
 * workers. `close` of a writable replaces the file as a whole.
 */
export class OpfsFolder implements Folder {
  readonly home = "opfs";

  constructor(private readonly directory: FileSystemDirectoryHandle) {}

  async read(name: string): Promise<Blob | undefined> {
    const file = await this.#find(name);
    return file && present(file.getFile());
  }

  async size(name: string): Promise<number | undefined> {
    return (await this.read(name))?.size;
  }

  async write(name: string, content: Content): Promise<void> {
    checkName(name);
    const isNew = (await this.size(name)) === undefined;
    let written = 0;
    let writable: FileSystemWritableFileStream | undefined;
    try {
      writable = await (await this.directory.getFileHandle(name, { create: true })).createWritable();
      for await (const part of parts(content)) {
        await writable.write(part);
        written += part.byteLength;
      }
      await writable.close();
    } catch (error) {
      await writable?.abort().catch(() => undefined);
      // The handle of a new file exists before its content. The first error is the one to report.
      if (isNew) await this.remove(name).catch(() => undefined);
      throw await explained(error, name, written);
    }
  }

  async rename(from: string, to: string): Promise<void> {
    checkName(to);
    const file: File | undefined = await this.#find(from);
    if (!file) throw new CotensorError("NotFound", `no file ${from}`);
    if (file.move) {
      // Chromium refuses to replace a file.
      await this.remove(to);
      await file.move(to);
    } else {
      await this.write(to, await file.getFile());
      await this.remove(from);
    }
  }

  /** All files; none once the user removed the site's data. */
  async list(): Promise<Map<string, number>> {
    const found = new Map<string, number>();
    await present(this.#addTo(found));
    return found;
  }

  async #addTo(found: Map<string, number>): Promise<void> {
    // TypeScript's library has the iteration of folders in a part that only recent versions load.
    const entries = (this.directory as unknown as { values(): AsyncIterable<FileSystemHandle> }).values();
    for await (const entry of entries) {
      if (entry.kind !== "file") continue;
      const file = await present((entry as FileSystemFileHandle).getFile());
      if (file) found.set(entry.name, file.size);
    }
  }

  async remove(name: string): Promise<void> {
    for (let wait = 1; ; wait *= 2) {
      try {
        return await present(this.directory.removeEntry(name));
      } catch (error) {
        // The browser unlocks a file a little later than `abort` says so, or after the crash of a tab that wrote it.
        if ((error as Error).name !== "NoModificationAllowedError" || wait > REMOVE_WAIT_MAX) throw error;
        await new Promise((resolve) => setTimeout(resolve, wait));
      }
    }
  }

  #find(name: string): Promise<FileSystemFileHandle | undefined> {
    return present(this.directory.getFileHandle(name));
  }
}

/** The Origin Private File System of the site; memory with the reason, if the browser does not give it. */
export async function openFolders(root = "cotensor"): Promise<Folders> {
  checkName(root);
  const storage = (globalThis.navigator as Navigator | undefined)?.storage;
  if (!storage?.getDirectory) return new MemoryFolders("there is no Origin Private File System here; browsers have it in secure contexts");
  if (!("createWritable" in FileSystemFileHandle.prototype)) return new MemoryFolders("the browser writes private files in dedicated workers only");
  try {
    const top = await (await storage.getDirectory()).getDirectoryHandle(root, { create: true });
    const open = async (name: string): Promise<Folder> => {
      checkName(name);
      return new OpfsFolder(await top.getDirectoryHandle(name, { create: true }));
    };
    return { home: "opfs", open };
  } catch (error) {
    return new MemoryFolders(`the browser refused the Origin Private File System: ${String(error)}`);
  }
}

/** The value, or nothing if there is no such file. */
async function present<Value>(value: Promise<Value>): Promise<Value | undefined> {
  try {
    return await value;
  } catch (error) {
    if ((error as Error).name === "NotFoundError") return undefined;
    throw error;
  }
}

async function explained(error: unknown, name: string, written: number): Promise<unknown> {
  if ((error as Error).name !== "QuotaExceededError") return error;
  const { quota = 0, usage = 0 } = await navigator.storage.estimate();
  const sizes = `${name}: the browser refused more after ${written} bytes; the site uses ${usage} of ${quota} bytes`;
  return new CotensorError("OverBudget", `${sizes}. prune(maxBytes) removes stored models; navigator.storage.persist() may raise the limit`);
}

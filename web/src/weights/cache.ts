import { CotensorError } from "../errors.js";
import { RealmLocks, siteLocks, type Locks } from "../locks.js";
import { blobParts, parts, type Content, type Folder, type Folders } from "./folder.js";
import { hashText, type NewHasher } from "./hash.js";
import { MemoryFolder } from "./memory.js";
import { checkKey, manifestText, parsedManifest, type BlobRef, type Manifest } from "./manifest.js";
import { openFolders } from "./opfs.js";

/** Options of a cache. */
export interface WeightCacheOptions {
  readonly newHasher: NewHasher;
  /** The private file system of the site by default. */
  readonly folders?: Folders;
  /** Those of the site by default. */
  readonly locks?: Locks;
  /** Milliseconds since 1970. */
  readonly now?: () => number;
}

/** The content of a cache. */
export interface CacheUsage {
  readonly bytes: number;
  readonly blobs: number;
  readonly manifests: number;
}

/** Where blobs and manifests are. */
interface Home {
  readonly blobs: Folder;
  readonly manifests: Folder;
}

/** A blob is gone that a manifest named: another tab pruned it, or the user removed the site's data. */
export class MissingBlob extends CotensorError {}

/** Stores content as a blob. */
export type PutBlob = (content: Content) => Promise<BlobRef>;

/**
 * Writers of blobs share this lock. Blobs are removed by a holder that has it alone, so that no blob is removed before its manifest
 * is written. No caller waits to have it alone: a writer that takes the lock twice would then wait for itself.
 */
const WRITING = "cotensor:weights";
/** How exact the time of the last use is, in milliseconds. */
const USED_STEP = 60_000;
/** Blobs that are being written have names with this start. */
const UNFINISHED = "unfinished.";

const realmLocks = new RealmLocks();
let unfinished = 0;

/** Weights and other files, found by the hash of their content, and manifests that name them. All tabs and workers of a site share it. */
export class WeightCache {
  /** Whether blobs may be stored that no manifest names. */
  #hasUnnamed = false;
  /** Imports for which the disk has no room: they end with this page or worker. */
  readonly #memory: Home = { blobs: new MemoryFolder(), manifests: new MemoryFolder() };
  #reason: string | undefined;

  private constructor(
    readonly home: "opfs" | "memory",
    reason: string | undefined,
    readonly newHasher: NewHasher,
    readonly locks: Locks,
    private readonly disk: Home,
    private readonly now: () => number,
  ) {
    this.#reason = reason;
  }

  /** Why files are in memory: all of them, or an import for which the disk had no room. */
  get reason(): string | undefined {
    return this.#reason;
  }

  static async open(options: WeightCacheOptions): Promise<WeightCache> {
    const folders = options.folders ?? (await openFolders());
    const locks = options.locks ?? siteLocks() ?? realmLocks;
    const disk = { blobs: await folders.open("blobs"), manifests: await folders.open("manifests") };
    return new WeightCache(folders.home, folders.reason, options.newHasher, locks, disk, options.now ?? Date.now);
  }

  /** The manifest of `key`, if all its blobs are stored in full. Otherwise it counts as missing, and is removed. */
  async manifest(key: string): Promise<Manifest | undefined> {
    const name = this.#manifestName(key);
    for (const home of [this.#memory, this.disk]) {
      const file = await home.manifests.read(name);
      if (!file) continue;
      const manifest = await parsedManifest(file, key);
      if (manifest && (await this.#complete(manifest))) {
        if (home === this.disk) await this.#touch(name, manifest);
        return manifest;
      }
      await home.manifests.remove(name);
    }
    return undefined;
  }

  /**
   * The manifest of `key`. Without one, `build` stores blobs and returns the document; all tabs and workers wait for the first.
   * A manifest is written after its blobs. If `build` fails, its blobs are removed unless a manifest names them. `build` may
   * download and import, but not the same key. With `orMemory`, what the disk does not take is kept in memory, and `reason` says why;
   * `build` then stores arrays and blobs, no streams.
   */
  async once(key: string, build: (put: PutBlob) => Promise<unknown>, orMemory = false): Promise<Manifest> {
    const stored = await this.manifest(key);
    if (stored) return stored;
    return this.locks.request(`cotensor.import:${key}`, {}, async () => {
      return (await this.manifest(key)) ?? (await this.replace(key, build, orMemory));
    });
  }

  /** Makes the manifest of `key` anew; see `once`. The caller prevents that two do so at once. */
  async replace(key: string, build: (put: PutBlob) => Promise<unknown>, orMemory = false): Promise<Manifest> {
    checkKey(key);
    try {
      return await this.locks.request(WRITING, { mode: "shared" }, async () => {
        const blobs = new Map<string, BlobRef>();
        let home = this.disk;
        const stored = async <Value>(write: () => Promise<Value>): Promise<Value> => {
          try {
            return await write();
          } catch (error) {
            if (!orMemory || home !== this.disk || !isUnwritable(error)) throw error;
            await this.#takeToMemory(blobs.values(), error);
            home = this.#memory;
            return write();
          }
        };
        const document = await build(async (content) => {
          const blob = await stored(() => this.#put(content, home.blobs));
          blobs.set(blob.hash, blob);
          return blob;
        });
        const manifest = { key, blobs: [...blobs.values()], document, used: this.now() };
        await stored(() => home.manifests.write(this.#manifestName(key), manifestText(manifest)));
        return manifest;
      });
    } catch (error) {
      this.#hasUnnamed = true;
      throw error;
    } finally {
      // What stays is removed by the next one.
      if (this.#hasUnnamed) await this.#collectAlone().catch(() => undefined);
    }
  }

  /** A blob that a manifest names. One of another size is removed, and counts as missing. Its bytes are read when needed. */
  async blob({ hash, size }: BlobRef): Promise<Blob | undefined> {
    for (const { blobs } of [this.#memory, this.disk]) {
      const file = await blobs.read(hash);
      if (file?.size === size) return file;
      if (file) await blobs.remove(hash);
    }
    return undefined;
  }

  /** The bytes of a blob; an error if it is missing. */
  async bytes(blob: BlobRef): Promise<Uint8Array<ArrayBuffer>> {
    const file = await this.blob(blob);
    if (!file) throw new MissingBlob("NotFound", `blob ${blob.hash}: it is not stored; import or download it again`);
    return new Uint8Array(await file.arrayBuffer());
  }

  /** Reads a blob and compares its hash. A blob with other bytes is removed, and counts as missing. */
  async verify(blob: BlobRef): Promise<boolean> {
    const file = await this.blob(blob);
    if (!file) return false;
    const hasher = this.newHasher();
    for await (const part of blobParts(file)) hasher.update(part);
    if (hasher.digest() === blob.hash) return true;
    for (const { blobs } of [this.#memory, this.disk]) await blobs.remove(blob.hash);
    return false;
  }

  /** Removes the manifest of `key`, and the blobs that no other manifest names: now, or when no import or download runs. */
  async remove(key: string): Promise<void> {
    const name = this.#manifestName(key);
    await this.#memory.manifests.remove(name);
    await this.disk.manifests.remove(name);
    this.#hasUnnamed = true;
    await this.#collectAlone();
  }

  /** Bytes and numbers of what is stored. A blob that several manifests name counts once. */
  async usage(): Promise<CacheUsage> {
    const [blobs, manifests] = [await this.disk.blobs.list(), await this.disk.manifests.list()];
    const bytes = [...blobs.values(), ...manifests.values()].reduce((total, each) => total + each, 0);
    return { bytes, blobs: blobs.size, manifests: manifests.size };
  }

  /**
   * Removes blobs that no manifest names, then the least recently read manifests with their blobs, until at most `maxBytes`
   * are stored. Returns the keys of the removed manifests. While an import or download runs in any tab, a `Conflict` error.
   */
  async prune(maxBytes: number): Promise<string[]> {
    if (!(maxBytes >= 0)) throw new CotensorError("Invalid", `maxBytes: a number of bytes is required, not ${maxBytes}`);
    return this.locks.request(WRITING, { ifAvailable: true }, async (lock) => {
      if (!lock) throw new CotensorError("Conflict", "an import or download is running, in this tab or another; prune when it ended");
      const removed: string[] = [];
      const byUse = [...(await removeUnnamed(this.disk))].sort(([, a], [, b]) => a.used - b.used);
      for (const [name, manifest] of byUse) {
        if ((await this.usage()).bytes <= maxBytes) break;
        await this.disk.manifests.remove(name);
        removed.push(manifest.key);
        await removeUnnamed(this.disk);
      }
      return removed;
    });
  }

  /** Stores content under its hash. Content that is stored already is compared by its hash and size only. */
  async #put(content: Content, folder: Folder): Promise<BlobRef> {
    const hasher = this.newHasher();
    let size = 0;
    async function* hashed(): AsyncGenerator<Uint8Array<ArrayBuffer>> {
      for await (const part of parts(content)) {
        hasher.update(part);
        size += part.byteLength;
        yield part;
      }
    }
    // The name is known after the last part.
    const name = `${UNFINISHED}${this.now()}.${Math.floor(Math.random() * 2 ** 32)}.${(unfinished += 1)}`;
    try {
      await folder.write(name, hashed());
      const hash = hasher.digest();
      // Two imports may store equal weights at once.
      await this.locks.request(`cotensor:blob:${hash}`, {}, async () => {
        if ((await folder.size(hash)) !== size) await folder.rename(name, hash);
      });
      return { hash, size };
    } finally {
      // Nothing is left of this name, unless the hash was stored before.
      await folder.remove(name).catch(() => undefined);
    }
  }

  /** Copies blobs of an import to memory: on the disk no manifest will name them. */
  async #takeToMemory(blobs: Iterable<BlobRef>, error: unknown): Promise<void> {
    for (const blob of blobs) {
      const file = await this.blob(blob);
      if (!file) throw error;
      await this.#memory.blobs.write(blob.hash, file);
    }
    this.#hasUnnamed = true;
    this.#reason = error instanceof CotensorError ? error.message : `the site's private files were removed (${String(error)})`;
  }

  async #complete(manifest: Manifest): Promise<boolean> {
    for (const blob of manifest.blobs) {
      if (!(await this.blob(blob))) return false;
    }
    return true;
  }

  /** Notes that a manifest was read. A full disk does not prevent reading. */
  async #touch(name: string, manifest: Manifest): Promise<void> {
    const used = this.now();
    if (used - manifest.used < USED_STEP) return;
    try {
      await this.disk.manifests.write(name, manifestText({ ...manifest, used }));
    } catch (error) {
      if (!(error instanceof CotensorError && error.kind === "OverBudget")) throw error;
    }
  }

  /** Removes blobs without a manifest, unless blobs are being written: then the writer does it. */
  async #collectAlone(): Promise<void> {
    await this.locks.request(WRITING, { ifAvailable: true }, async (lock) => {
      if (!lock) return;
      this.#hasUnnamed = false;
      for (const home of [this.#memory, this.disk]) await removeUnnamed(home);
    });
  }

  #manifestName(key: string): string {
    checkKey(key);
    return hashText(this.newHasher, key);
  }
}

/** Removes unreadable manifests, and the blobs that no manifest names. Returns the manifests by file name. */
async function removeUnnamed(home: Home): Promise<Map<string, Manifest>> {
  const manifests = new Map<string, Manifest>();
  const named = new Set<string>();
  for (const name of (await home.manifests.list()).keys()) {
    const file = await home.manifests.read(name);
    const manifest = file && (await parsedManifest(file));
    if (!manifest) {
      await home.manifests.remove(name);
      continue;
    }
    manifests.set(name, manifest);
    for (const { hash } of manifest.blobs) named.add(hash);
  }
  for (const name of (await home.blobs.list()).keys()) {
    // A file that a dying tab still locks is removed by the next `prune`.
    if (!named.has(name)) await home.blobs.remove(name).catch(() => undefined);
  }
  return manifests;
}

/** Whether a disk takes no files: it is full, or the user removed the site's data, and with them the folder that is open here. */
export function isUnwritable(error: unknown): boolean {
  if (error instanceof CotensorError) return error.kind === "OverBudget";
  return error instanceof DOMException && ["NotFoundError", "InvalidStateError"].includes(error.name);
}

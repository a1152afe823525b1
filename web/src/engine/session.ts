// One session of onnxruntime-web with its users.
import { CotensorError } from "../errors.js";
import { sha256 } from "../sha256.js";
import type { OrtSession, OrtTensor } from "./ort.js";

/** The files of a graph. */
export interface GraphFiles {
  /** ONNX. */
  readonly graph: Uint8Array;
  /** Weights beside the graph, by the paths that the graph names. */
  readonly externalData?: readonly { readonly path: string; readonly data: Uint8Array | Blob }[];
}

/** Files, or a function that reads them. */
export type GraphSource = GraphFiles | (() => GraphFiles | Promise<GraphFiles>);

/**
 * A session that users of equal graphs share. `open`, `run` and `close` are called in the lane of the library.
 *
 * After a failed run on a device, onnxruntime-web keeps the inputs and outputs that it bound, and the next run computes with
 * those. So the session is closed, and opened again from its files before the next run.
 */
export class SharedSession {
  /** The number of graphs that use it. */
  users = 0;
  #session: OrtSession | undefined;
  #failed = false;
  /** The files, until the session is open. */
  #files: Promise<GraphFiles> | undefined;
  /** Reads the files again. Without it a failed run is the last one. */
  readonly #read: (() => GraphFiles | Promise<GraphFiles>) | undefined;

  constructor(
    readonly key: string,
    source: GraphSource,
    private readonly create: (files: GraphFiles) => Promise<OrtSession>,
    /** Whether the library binds inputs and outputs before a run. */
    private readonly binds: boolean,
  ) {
    if (typeof source === "function") this.#read = source;
    else this.#files = Promise.resolve(source);
  }

  /** Whether it runs, or can be opened again. */
  get isUsable(): boolean {
    return !this.#failed || this.#read !== undefined;
  }

  /** Reads the files, unless the session is open. */
  async prepare(): Promise<void> {
    if (!this.#session) await this.#content();
  }

  /** The session, which is opened if it is not. */
  async open(): Promise<OrtSession> {
    if (this.#session) return this.#session;
    this.#session = await this.create(await this.#content());
    this.#files = undefined;
    this.#failed = false;
    return this.#session;
  }

  async run(feeds: Record<string, OrtTensor>, fetches: Record<string, OrtTensor | null>): Promise<Record<string, OrtTensor>> {
    const session = await this.open();
    try {
      return await session.run(feeds, fetches);
    } catch (error) {
      if (this.binds) {
        this.#failed = true;
        await this.close();
      }
      throw error;
    }
  }

  /** Releases the session. A second call does nothing. */
  async close(): Promise<void> {
    const session = this.#session;
    this.#session = undefined;
    await session?.release();
  }

  async #content(): Promise<GraphFiles> {
    this.#files ??= this.#read && Promise.resolve(this.#read());
    if (this.#files === undefined) {
      const way = "load it again, or load it with a function that reads its files";
      throw new CotensorError("Engine", `an earlier run failed, and onnxruntime-web cannot run this graph any more; ${way}`);
    }
    try {
      return await this.#files;
    } catch (error) {
      this.#files = undefined;
      throw error;
    }
  }
}

/** A key of equal files: their SHA-256; nothing where the browser computes no hashes. */
export async function contentKey({ graph, externalData = [] }: GraphFiles): Promise<string | undefined> {
  const parts: [string, string][] = [];
  for (const { path, data } of [{ path: "", data: graph }, ...externalData]) {
    const hash = await sha256(data);
    if (hash === undefined) return undefined;
    parts.push([path, hash]);
  }
  return JSON.stringify(parts);
}

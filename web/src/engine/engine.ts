import { CotensorError } from "../errors.js";
import type { Store } from "../store.js";
import type { DType } from "../types.js";
import type { Graph } from "./api.js";
import { OrtGraph } from "./graph.js";
import { ortLane, type Lane } from "./lane.js";
import type { KnownOrt, Ort, OrtProvider, OrtSession } from "./ort.js";
import { checkFiles } from "./ort_files.js";
import { ownPrograms } from "./programs.js";
import { contentKey, SharedSession, type GraphFiles, type GraphSource } from "./session.js";
import { targetOf, type Provider, type Target } from "./target.js";

/** Options of an engine. */
export interface OrtEngineOptions {
  /** The library, such as `import * as ort from "onnxruntime-web/webgpu"`. */
  readonly ort: Ort;
  /** The store of inputs and outputs. Its memory on the provider's device has the device that sessions run on. */
  readonly store: Store;
  readonly provider: Provider;
}

/** A graph to load. */
export interface LoadRequest {
  /** The files, or a function that reads them. The engine keeps no files; with a function it can read them again after a failed run. */
  readonly files: GraphSource;
  /** Names equal files. Without it the files are hashed. Graphs of equal keys share a session. */
  readonly key?: string;
  /** The name in errors and reports; `graph` by default. */
  readonly label?: string;
  /** Values of symbolic dimensions. WebNN runs graphs without symbols. */
  readonly dimensions?: Readonly<Record<string, number>>;
  /** The type in which the graph computes. By default that of its floating-point outputs. */
  readonly precision?: DType;
  /** `false` runs the graph's operators as they are, without the library's fusions. */
  readonly isOptimized?: boolean;
  /** The types of outputs, where known. Types that the device has no memory for stay on the host. */
  readonly outputs?: readonly { readonly name: string; readonly dtype: DType }[];
}

/** The numbers of engines, for keys of graphs that cannot be hashed. */
let unnamed = 0;

/**
 * Runs ONNX graphs with onnxruntime-web. Tensors of the store are inputs and outputs without copies where the library can; other
 * copies are counted.
 *
 * The program owns the library and the device. An engine never destroys them.
 */
export class OrtEngine {
  readonly #sessions = new Map<string, SharedSession>();
  /** Releases graphs that the program dropped without `release`. */
  readonly #forgotten = new FinalizationRegistry<SharedSession>((session) => void this.#release(session).catch(() => undefined));
  /** Rejects the calls that wait for the library. */
  readonly #waiting = new Set<(error: CotensorError) => void>();
  readonly #library: Ort;
  readonly #ort: KnownOrt;
  readonly #lane: Lane;
  readonly #target: Target;
  /** Whether the library is onnxruntime-node, which has the processor of the system and no devices of a browser. */
  readonly #isNative: boolean;
  readonly #name: string;
  readonly #version: string;
  #end: CotensorError | undefined;

  private constructor(
    options: OrtEngineOptions,
    readonly store: Store,
  ) {
    this.#library = options.ort;
    this.#ort = options.ort as unknown as KnownOrt;
    this.#lane = ortLane(options.ort);
    this.#target = targetOf(options.provider, store);
    const { web, node } = options.ort.env.versions;
    this.#isNative = web === undefined && node !== undefined;
    this.#name = this.#isNative ? "ort-node" : "ort-web";
    this.#version = web ?? node ?? "unknown";
    void this.#target.lost?.then((what) => this.#stop(new CotensorError("Io", `${what}; ${this.#target.way}`)));
  }

  /** An engine for the store. */
  static create(options: OrtEngineOptions): OrtEngine {
    return new OrtEngine(options, options.store);
  }

  get provider(): Provider {
    return this.#target.provider;
  }

  /** The number of sessions. */
  get sessionCount(): number {
    return this.#sessions.size;
  }

  /** Loads a graph. Graphs of equal keys and dimensions share one session, which the last one releases. */
  async load(request: LoadRequest): Promise<Graph> {
    this.#check();
    const { label = "graph", dimensions = {}, isOptimized = true } = request;
    const source = request.files;
    let content = request.key;
    if (content === undefined) {
      const files = typeof source === "function" ? await source() : source;
      content = (await contentKey(files)) ?? `unnamed ${(unnamed += 1)}`;
      this.#check();
    }
    const key = JSON.stringify([content, Object.entries(dimensions).sort(), isOptimized]);
    const session = this.#share(key, source, request);
    try {
      await checkFiles(this.#library);
      await session.prepare();
      const opened = await this.#enter(label, () => session.open());
      const variant = isOptimized ? this.#target.provider : `${this.#target.provider} unfused`;
      const known = { label, engine: [this.#name, this.#version] as const, precision: request.precision, variant };
      const release = (): Promise<void> => {
        this.#forgotten.unregister(graph);
        return this.#release(session);
      };
      const hooks = { enter: this.#enter.bind(this), release, check: () => this.#check() };
      const graph = new OrtGraph(this.#ort, this.store, this.#target, session, opened, known, hooks);
      this.#forgotten.register(graph, session, graph);
      return graph;
    } catch (error) {
      await this.#release(session);
      throw error instanceof CotensorError ? error : engineError(label, error);
    }
  }

  /** Releases all sessions. The device stays. */
  async dispose(): Promise<void> {
    await this.#stop(new CotensorError("Conflict", "the engine was disposed; create another one"));
  }

  /** Runs a task of the library in its turn. Rejects at once when the device is lost. */
  #enter<Result>(label: string, task: () => Promise<Result>): Promise<Result> {
    return new Promise((resolve, reject) => {
      this.#waiting.add(reject);
      const turn = this.#lane.run(() => {
        this.#check();
        return task();
      });
      turn
        .then(resolve, (error: unknown) => reject(this.#end ?? engineError(label, error)))
        .finally(() => this.#waiting.delete(reject));
    });
  }

  /** The session of that key, with one user more. */
  #share(key: string, source: GraphSource, request: LoadRequest): SharedSession {
    let session = this.#sessions.get(key);
    if (!session?.isUsable) {
      session = new SharedSession(key, source, (files) => this.#create(files, request), this.#target.provider !== "wasm");
      this.#sessions.set(key, session);
    }
    session.users += 1;
    return session;
  }

  /** A session with compiled programs of its own. */
  async #create(files: GraphFiles, request: LoadRequest): Promise<OrtSession> {
    const { options } = this.#target;
    if (options.name !== "webgpu") return this.#open(files, request, options);
    const programs = ownPrograms(options.device);
    try {
      const session = await this.#open(files, request, { ...options, device: programs.device });
      const release = session.release.bind(session);
      session.release = async () => {
        await release();
        programs.giveBack();
      };
      return session;
    } catch (error) {
      programs.giveBack();
      throw error;
    }
  }

  async #open({ graph, externalData = [] }: GraphFiles, request: LoadRequest, options: OrtProvider): Promise<OrtSession> {
    const { location, dtypes } = this.#target;
    const data = await Promise.all(externalData.map(async ({ path, data }) => ({ path, data: this.#isNative && data instanceof Blob ? new Uint8Array(await data.arrayBuffer()) : data })));
    const open = (preferredOutputLocation: string | Record<string, string>): Promise<OrtSession> =>
      this.#ort.InferenceSession.create(graph, {
        executionProviders: [this.#isNative ? { name: "cpu" } : options],
        preferredOutputLocation,
        externalData: data,
        freeDimensionOverrides: { ...request.dimensions },
        graphOptimizationLevel: (request.isOptimized ?? true) ? "all" : "disabled",
      });
    const place = (name: string, type = ""): [string, string] => [name, dtypes.has(type) ? location : "cpu"];
    if (request.outputs) return open(Object.fromEntries(request.outputs.map(({ name, dtype }) => place(name, dtype))));
    const session = await open(location);
    const places = Object.fromEntries(session.outputMetadata.map(({ name, type }) => place(name, type)));
    if (Object.values(places).every((each) => each === location)) return session;
    // The types are known once a session is open, and places only before.
    await session.release();
    return open(places);
  }

  async #release(session: SharedSession): Promise<void> {
    session.users -= 1;
    if (session.users > 0) return;
    if (this.#sessions.get(session.key) === session) this.#sessions.delete(session.key);
    await this.#lane.run(() => session.close());
  }

  /** Ends the engine: calls that wait fail, and all sessions are released. */
  async #stop(end: CotensorError): Promise<void> {
    if (this.#end) return;
    this.#end = end;
    const sessions = [...this.#sessions.values()];
    this.#sessions.clear();
    for (const reject of this.#waiting) reject(end);
    // Of a lost device, the library may refuse what is left to release.
    await Promise.all(sessions.map((session) => this.#lane.run(() => session.close()).catch(() => undefined)));
  }

  #check(): void {
    if (this.#end) throw this.#end;
  }
}

function engineError(label: string, error: unknown): CotensorError {
  if (error instanceof CotensorError) return error;
  const message = error instanceof Error ? error.message : String(error);
  return new CotensorError("Engine", `${label}: onnxruntime-web: ${message}`);
}

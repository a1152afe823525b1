// Sharing for pipelines of transformers.js: one session for equal graphs, one run for equal inputs.
import type { RunResult } from "../engine/api.js";
import { CotensorError, type ErrorKind } from "../errors.js";
import { sha256 } from "../sha256.js";
import { Computations } from "../stage/computations.js";
import { Store } from "../store.js";
import type { Tensor as StoreTensor } from "../tensor.js";
import type { DType, TypedArray } from "../types.js";

/** A tensor of the library's onnxruntime. */
interface PipelineTensor {
  readonly type: string;
  readonly dims: readonly number[];
  readonly location?: string;
  readonly data: ArrayBufferView;
}
type NewTensor = new (type: string, data: ArrayBufferView, dims: readonly number[]) => PipelineTensor;
type Tensors = Record<string, PipelineTensor>;

/** A session of the library's onnxruntime. */
export interface PipelineSession {
  readonly inputNames: readonly string[];
  readonly outputNames: readonly string[];
  readonly config?: { readonly dtype?: string; readonly device?: string };
  run(feeds: never, ...rest: never[]): Promise<unknown>;
  release?(): Promise<void> | void;
}

/** The part of a pipeline that sharing uses. */
export interface Pipeline {
  readonly model: { sessions: Record<string, PipelineSession> };
}

/** What sharing saved. */
export interface SharingReport {
  /** Sessions that run. */
  readonly sessions: number;
  /** Sessions of pipelines that were released, because an equal one runs. */
  readonly released: number;
  /** Runs of graphs. */
  readonly computed: number;
  /** Results that were there. */
  readonly reused: number;
}

/** Options of `shareWith`. */
export interface ShareOptions {
  /** The store of results, whose budget limits them. By default one of this page, of at most 256 MiB. */
  readonly store?: Store;
}

const DEFAULT_BUDGET = 256 * 2 ** 20;
/** Errors of the store for results that are not kept. */
const UNSHARED: readonly ErrorKind[] = ["OverBudget", "Refused"];
const groups = new WeakMap<Store, PipelineGroup>();
let ownStore: Promise<Store> | undefined;

/**
 * Shares a pipeline's sessions and results with the pipelines that were given before. Call it once for each pipeline.
 *
 * Two sessions are one if their graphs have the same inputs, outputs and types, and gave equal numbers for the first input: the
 * library does not say from which file a session is. Sessions of decoders with a cache, and inputs on a device, are left alone.
 */
export async function shareWith(pipeline: Pipeline, { store }: ShareOptions = {}): Promise<PipelineGroup> {
  ownStore ??= store ? undefined : Store.create({ budgets: { cpu: DEFAULT_BUDGET } });
  const home = store ?? (await (ownStore as Promise<Store>));
  const group = groups.get(home) ?? new PipelineGroup(home);
  groups.set(home, group);
  group.add(pipeline);
  return group;
}

/** Pipelines that share sessions and results. */
export class PipelineGroup {
  readonly #computations: Computations;
  /** The graphs, by inputs, outputs and types. */
  readonly #graphs = new Map<string, SharedGraph[]>();
  readonly #counts = { released: 0, computed: 0, reused: 0 };
  #latest = 0;

  constructor(readonly store: Store) {
    this.#computations = new Computations(store);
  }

  /** Replaces the sessions of a pipeline by shared ones. */
  add({ model }: Pipeline): void {
    if (typeof model?.sessions !== "object") throw new CotensorError("Invalid", "pipeline: a pipeline of transformers.js is required");
    for (const [name, session] of Object.entries(model.sessions)) {
      // A cache of a decoder is different in each run.
      if (session instanceof SharedSession || session.inputNames.some((input) => input.startsWith("past_key_values"))) continue;
      model.sessions[name] = new SharedSession(session, this);
    }
  }

  report(): SharingReport {
    const sessions = [...this.#graphs.values()].flat().filter(({ users }) => users > 0).length;
    return { sessions, ...this.#counts };
  }

  /** The graph that gave equal numbers before, or a new one. Runs the session for its first input. */
  async graphOf(session: PipelineSession, feeds: Tensors): Promise<SharedGraph> {
    const kind = JSON.stringify([session.inputNames, session.outputNames, session.config ?? {}]);
    const known = this.#graphs.get(kind) ?? [];
    this.#graphs.set(kind, known);
    const own = (await session.run(feeds as never)) as Tensors;
    this.#counts.computed += 1;
    for (const graph of [...known]) {
      if (graph.users === 0 || !(await this.#isSame(graph, feeds, own))) continue;
      this.#counts.released += 1;
      await session.release?.();
      return graph;
    }
    const graph = { session, users: 1, number: (this.#latest += 1), Tensor: undefined };
    known.push(graph);
    try {
      await this.run(graph, feeds, own);
      return graph;
    } catch (error) {
      graph.users = 0;
      throw error;
    }
  }

  /** Whether a graph gives the numbers of `own`; then it has one more user. Its other users may release it meanwhile. */
  async #isSame(graph: SharedGraph, feeds: Tensors, own: Tensors): Promise<boolean> {
    graph.users += 1;
    let isSame = false;
    try {
      isSame = sameNumbers(own, await this.run(graph, feeds));
      return isSame;
    } finally {
      if (!isSame) await this.release(graph);
    }
  }

  /** The outputs for these inputs: those of an earlier run, or computed. `known` has them already. */
  async run(graph: SharedGraph, feeds: Tensors, known?: Tensors): Promise<Tensors> {
    const key = await keyOf(graph.number, feeds);
    const { outputNames } = graph.session;
    const names = outputNames.map((output) => `pipeline.${output}/${key}`);
    const holder = "transformers.js";
    let made: Tensors | undefined;
    const { outputs, computed } = await this.#computations.once({ key, names, kind: "other", holder }, async (): Promise<RunResult> => {
      const start = performance.now();
      made = known ?? ((await graph.session.run(feeds as never)) as Tensors);
      const milliseconds = performance.now() - start;
      graph.Tensor ??= Object.values(made)[0]?.constructor as NewTensor;
      const tensors: StoreTensor[] = [];
      try {
        for (const [index, output] of outputNames.entries()) {
          const { type, dims, data } = made[output] as PipelineTensor;
          tensors.push(this.store.put(names[index] ?? "", data as TypedArray, { shape: dims, dtype: type as DType, holder, recompute: milliseconds }));
        }
        return { outputs: tensors, isPrivate: false, milliseconds };
      } catch (error) {
        for (const tensor of tensors) tensor.dispose();
        // This caller has its result. The store has no room for it, or does not share such tensors.
        if (!(error instanceof CotensorError) || !UNSHARED.includes(error.kind)) throw error;
        return { outputs: [], isPrivate: true, milliseconds };
      }
    });
    if (!known) this.#counts[computed ? "computed" : "reused"] += 1;
    try {
      if (made) return made;
      const { Tensor } = graph;
      if (!Tensor) throw new CotensorError("Conflict", "the graph has not run yet");
      // Pipelines change the numbers of some outputs in place, so each gets its own.
      return Object.fromEntries(outputs.map((tensor, index) => [outputNames[index] ?? "", new Tensor(tensor.dtype, tensor.array().slice(), [...tensor.shape])]));
    } finally {
      for (const tensor of outputs) tensor.dispose();
    }
  }

  async release(graph: SharedGraph): Promise<void> {
    graph.users -= 1;
    if (graph.users === 0) await graph.session.release?.();
  }
}

/** A session with the number of pipelines that use it. */
interface SharedGraph {
  readonly session: PipelineSession;
  users: number;
  readonly number: number;
  Tensor: NewTensor | undefined;
}

/** Takes the place of a session in a pipeline. */
class SharedSession implements PipelineSession {
  readonly inputNames: readonly string[];
  readonly outputNames: readonly string[];
  readonly config: { readonly dtype?: string; readonly device?: string };
  #graph: Promise<SharedGraph> | undefined;
  #isReleased = false;

  constructor(
    private readonly session: PipelineSession,
    private readonly group: PipelineGroup,
  ) {
    this.inputNames = session.inputNames;
    this.outputNames = session.outputNames;
    this.config = session.config ?? {};
  }

  async run(feeds: Tensors): Promise<Tensors> {
    if (!Object.values(feeds).every(({ location = "cpu" }) => location === "cpu")) return (await this.session.run(feeds as never)) as Tensors;
    return this.group.run(await (this.#graph ??= this.#find(feeds)), feeds);
  }

  /** A second call does nothing: other pipelines may use the graph. */
  async release(): Promise<void> {
    if (this.#isReleased) return;
    this.#isReleased = true;
    const graph = await this.#graph?.catch(() => undefined);
    if (graph === undefined) await this.session.release?.();
    else await this.group.release(graph);
  }

  async #find(feeds: Tensors): Promise<SharedGraph> {
    try {
      return await this.group.graphOf(this.session, feeds);
    } catch (error) {
      // The next call tries again.
      this.#graph = undefined;
      throw error;
    }
  }
}

async function keyOf(graph: number, feeds: Tensors): Promise<string> {
  const digest = async (bytes: ArrayBufferView): Promise<string> => {
    const hash = await sha256(bytes);
    if (hash === undefined) throw new CotensorError("Unsupported", "shareWith: the browser computes hashes on pages with https, and of 127.0.0.1, only");
    return hash;
  };
  const inputs = Object.entries(feeds).sort(([a], [b]) => (a < b ? -1 : 1));
  const parts = await Promise.all(inputs.map(async ([name, { type, dims, data }]) => [name, type, dims, await digest(data)]));
  return digest(new TextEncoder().encode(JSON.stringify([graph, parts])));
}

function sameNumbers(a: Tensors, b: Tensors): boolean {
  const bytes = ({ data }: PipelineTensor): Uint8Array => new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  return Object.entries(a).every(([name, tensor]) => {
    const other = b[name];
    if (!other || tensor.dims.join() !== other.dims.join()) return false;
    const [one, two] = [bytes(tensor), bytes(other)];
    return one.length === two.length && one.every((byte, index) => byte === two[index]);
  });
}

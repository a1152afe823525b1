import { CotensorError } from "../errors.js";
import type { Store } from "../store.js";
import type { DType } from "../types.js";
import type { Graph, Input, Port, RunOptions, RunResult } from "./api.js";
import { Feeds, releaseInputs, takeInputs, type Given } from "./feeds.js";
import type { KnownOrt, OrtSession, OrtTensor, OrtValueMetadata } from "./ort.js";
import { Results } from "./results.js";
import type { SharedSession } from "./session.js";
import { Shapes } from "./shapes.js";
import { outputTensor, type Target } from "./target.js";

/** The types of elements that the store and onnxruntime-web have in common. */
const DTYPES: ReadonlySet<string> = new Set([
  ...["bool", "uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32", "uint64", "int64", "float64"],
]);
/** How onnxruntime-web refuses memory for an output of another shape. */
const WRONG_SHAPE = /provided for output .* has shape|shape verification/i;

/** What an engine does for its graphs. */
interface Hooks {
  /** Runs a task in its turn. */
  enter<Result>(label: string, task: () => Promise<Result>): Promise<Result>;
  release(): Promise<void>;
  /** Throws once the engine ended. */
  check(): void;
}

interface Known {
  readonly label: string;
  readonly engine: readonly [name: string, version: string];
  readonly precision: DType | undefined;
  readonly variant: string;
}

/** A graph in a session of onnxruntime-web. */
export class OrtGraph implements Graph {
  readonly label: string;
  readonly inputs: readonly Port[];
  readonly outputs: readonly Port[];
  readonly engine: readonly [name: string, version: string];
  readonly precision: DType;
  readonly variant: string;
  readonly #shapes: Shapes;
  #released = false;

  /** Engines make graphs. */
  constructor(
    private readonly ort: KnownOrt,
    private readonly store: Store,
    private readonly target: Target,
    private readonly session: SharedSession,
    opened: OrtSession,
    known: Known,
    private readonly hooks: Hooks,
  ) {
    this.label = known.label;
    this.inputs = opened.inputMetadata.map((each) => port(known.label, each));
    this.outputs = opened.outputMetadata.map((each) => port(known.label, each));
    this.engine = known.engine;
    this.precision = known.precision ?? this.outputs.find(({ dtype }) => dtype.startsWith("float"))?.dtype ?? "float32";
    this.variant = known.variant;
    this.#shapes = new Shapes(known.label, this.inputs);
  }

  get device(): "cpu" | "webgpu" | "webnn" {
    return this.target.device;
  }

  async run(inputs: Readonly<Record<string, Input>>, outputs: readonly string[], options: RunOptions = {}): Promise<RunResult> {
    this.hooks.check();
    if (this.#released) throw new CotensorError("Conflict", `${this.label}: the graph was released; load it again`);
    const ports = outputs.map((name) => this.#output(name));
    const given = takeInputs(this.label, this.inputs, inputs);
    let started = false;
    try {
      const shapes = new Map(given.map(({ port: { name }, shape }) => [name, shape]));
      // Refuses wrong shapes before the call waits.
      this.#shapes.bind(shapes);
      return await this.hooks.enter(this.label, async () => {
        started = true;
        try {
          return await this.#run(given, shapes, ports, options);
        } finally {
          releaseInputs(given);
        }
      });
    } finally {
      // After the start, the inputs stay as long as the library uses them, even if the call failed.
      if (!started) releaseInputs(given);
    }
  }

  async release(): Promise<void> {
    if (this.#released) return;
    this.#released = true;
    await this.hooks.release();
  }

  /** One run, in its turn. */
  async #run(given: readonly Given[], shapes: ReadonlyMap<string, readonly number[]>, ports: readonly Port[], options: RunOptions): Promise<RunResult> {
    const { describe = (output) => ({ name: `${this.label}/${output}` }), holder } = options;
    const feeds = new Feeds(this.ort, this.store, this.label, this.target);
    const results = new Results(this.store, holder, ports.map(({ name }, index) => describe(name, index)));
    const start = performance.now();
    try {
      await feeds.add(given);
      await this.#compute(feeds.feeds, shapes, ports, results);
      await feeds.check();
      // A result that is kept has the time until it was there; other results are given before the device is done.
      if (results.isCached) await this.target.gpu?.queue.onSubmittedWorkDone();
      this.hooks.check();
      const milliseconds = performance.now() - start;
      return { outputs: results.publish(milliseconds), isPrivate: results.isPrivate, milliseconds };
    } finally {
      results.dispose();
      feeds.dispose();
    }
  }

  async #compute(feeds: Record<string, OrtTensor>, shapes: ReadonlyMap<string, readonly number[]>, ports: readonly Port[], results: Results): Promise<void> {
    const signature = Shapes.signature(shapes);
    const symbols = this.#shapes.bind(shapes);
    const fetches: Record<string, OrtTensor | null> = {};
    for (const [index, each] of ports.entries()) {
      const shape = this.target.device === "cpu" ? undefined : this.#shapes.ofOutput(each, symbols, signature);
      // The library leaves other types on the host, and has no memory for no elements.
      const onDevice = shape && !shape.includes(0) && this.target.dtypes.has(each.dtype);
      fetches[each.name] = onDevice ? await outputTensor(this.ort, results.reserve(index, each.dtype, shape, this.target.device), shape) : null;
    }
    const computed = await this.session.run(feeds, fetches).catch((error: unknown) => {
      // The graph declares other shapes than it computes. The next run lets the library allocate.
      const retry = WRONG_SHAPE.test(String(error)) && this.#shapes.distrust() && this.session.isUsable;
      if (!retry) throw error;
      results.dispose();
      return undefined;
    });
    if (!computed) return this.#compute(feeds, shapes, ports, results);
    try {
      for (const [index, each] of ports.entries()) {
        const output = computed[each.name];
        if (!output) throw new CotensorError("Engine", `${this.label}: onnxruntime-web gave no output ${each.name}`);
        this.#shapes.learn(signature, each.name, output.dims);
        if (!fetches[each.name]) await this.#take(results, index, each, output);
      }
    } finally {
      // Memory of the library; memory of the store stays.
      for (const output of Object.values(computed)) output.dispose();
    }
  }

  /** Brings an output that the library allocated to the store. */
  async #take(results: Results, index: number, { name, dtype }: Port, output: OrtTensor): Promise<void> {
    const shape = [...output.dims];
    if (output.location === "gpu-buffer" && this.target.gpu) {
      const reservation = results.reserve(index, dtype, shape, "webgpu");
      const encoder = this.target.gpu.createCommandEncoder();
      const target = reservation.storage();
      encoder.copyBufferToBuffer(output.gpuBuffer, 0, target, 0, Math.min(target.size, output.gpuBuffer.size));
      const refused = await this.target.memory?.refusal(() => this.target.gpu?.queue.submit([encoder.finish()]));
      if (refused !== undefined) throw new CotensorError("Io", `${this.label}: the GPU refused to copy the output ${name}: ${refused}`);
      this.store.countCopy(reservation.name, reservation.byteLength, "engine output");
      return;
    }
    const onHost = output.location === "cpu";
    const data = onHost ? output.data : await output.getData();
    if (!ArrayBuffer.isView(data)) throw new CotensorError("Unsupported", `${this.label}: output ${name} has texts; tensors have numbers`);
    const { name: tensor } = results.adopt(index, dtype, shape, data);
    this.store.countCopy(tensor, data.byteLength, onHost ? "engine output" : "device transfer");
  }

  #output(name: string): Port {
    const found = this.outputs.find((each) => each.name === name);
    if (found) return found;
    const known = this.outputs.map((each) => each.name).join(", ");
    throw new CotensorError("Invalid", `${this.label}: no output is named ${name}; the graph has ${known}`);
  }
}

function port(label: string, { name, type = "no tensor", shape = [] }: OrtValueMetadata): Port {
  if (!DTYPES.has(type)) throw new CotensorError("Unsupported", `${label}: ${name} has the type ${type}; ${[...DTYPES].join(", ")} are supported`);
  return { name, dtype: type as DType, shape: shape.map((each) => (typeof each === "string" && each !== "" ? each : isLength(each) ? each : null)) };
}

/** The library gives -1, or the same 32 bits without a sign, for a dimension that the graph does not name. */
function isLength(dimension: unknown): dimension is number {
  return typeof dimension === "number" && dimension >= 0 && dimension < 2 ** 31;
}

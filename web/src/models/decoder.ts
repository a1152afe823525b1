// A decoder that reads tokens and keeps the values of the tokens before, which are tensors on the model's device.
import type { HostArray, Input, Port } from "../engine/api.js";
import { CotensorError } from "../errors.js";
import { Tensor } from "../tensor.js";
import { sourceOf, type DecoderDef, type StageDef } from "./definition.js";
import type { Run } from "./run.js";
import type { ModelStage } from "./stages.js";

/** The graphs of a decoder: the one that reads the beginning, and the one that continues it. */
interface Graphs {
  readonly first: { readonly def: StageDef; readonly stage: ModelStage };
  readonly next: { readonly def: StageDef; readonly stage: ModelStage };
}

/** The state of one decoding. `dispose` releases its tensors. */
export class Decoder {
  /** The values of the tokens before, by the name of the input that reads them. */
  readonly #cache = new Map<string, Tensor>();
  /** Tokens that were read. */
  #length = 0;

  private constructor(
    private readonly run: Run,
    private readonly graphs: Graphs,
    private readonly names: DecoderDef,
    private readonly embeddings: Embeddings | undefined,
  ) {}

  /** A decoder of the model of `run`, whose roles are the graphs of a task without the encoder. */
  static async open(run: Run, roles: readonly string[]): Promise<Decoder> {
    const names = run.model.decoder;
    const load = async (role: string | undefined): Promise<Graphs["first"] | undefined> =>
      role === undefined ? undefined : { def: run.model.def(role), stage: await run.model.stage(role) };
    const [first, next] = await Promise.all(roles.slice(0, 2).map(load));
    if (!first || !names) throw new CotensorError("Unsupported", `${run.model.name}: the model has no decoder`);
    return new Decoder(run, { first, next: next ?? first }, names, await Embeddings.open(run, names));
  }

  /** Reads tokens, and gives the scores of all tokens for the place after them. */
  async read(tokens: readonly number[]): Promise<Float32Array> {
    const { def, stage } = this.#length === 0 ? this.graphs.first : this.graphs.next;
    const inputs: Record<string, Input> = {};
    for (const port of stage.inputs) inputs[port.name] = await this.#input(def, port, tokens);
    const kept = stage.outputs.filter(({ name }) => name.startsWith(this.names.present)).map(({ name }) => name);
    const [logitsName = "logits"] = def.outputs;
    const outputs = await stage.runAlone(inputs, [logitsName, ...kept], this.run.holder).finally(() => this.embeddings?.dispose());
    const [logits, ...values] = outputs;
    if (!logits) throw new CotensorError("Engine", `${this.run.model.name}: ${def.role} gave no ${logitsName}`);
    try {
      return await lastRow(this.run, logits);
    } finally {
      logits.dispose();
      values.forEach((value, index) => this.#keep(kept[index] ?? "", value));
      this.#length += tokens.length;
    }
  }

  dispose(): void {
    for (const value of this.#cache.values()) value.dispose();
    this.#cache.clear();
    this.embeddings?.dispose();
  }

  /** Keeps a value for the next run. Those of the encoder are the same in all runs: merged graphs give empty ones later. */
  #keep(output: string, value: Tensor): void {
    const input = this.names.past + output.slice(this.names.present.length);
    const before = this.#cache.get(input);
    if (before && input.includes(this.names.fixed)) {
      value.dispose();
      return;
    }
    before?.dispose();
    this.#cache.set(input, value);
  }

  #embeds(def: StageDef, tokens: readonly number[]): Promise<Input> {
    if (this.embeddings) return this.embeddings.of(tokens);
    throw new CotensorError("Unsupported", `${this.run.model.name}: ${def.role} reads embeddings, and the family has no graph that makes them`);
  }

  async #input(def: StageDef, port: Port, tokens: readonly number[]): Promise<Input> {
    if (port.name.startsWith(this.names.past)) return this.#cache.get(port.name) ?? emptyCache(port);
    const source = sourceOf(def, port.name);
    const places = tokens.map((_, index) => this.#length + index);
    switch (source) {
      case "tokens.ids":
        return integers(tokens, [1, tokens.length]);
      case "tokens.embeds":
        return this.#embeds(def, tokens);
      case "tokens.mask":
        return integers(new Array<number>(this.#length + tokens.length).fill(1), [1, this.#length + tokens.length]);
      case "tokens.positions":
        return integers(places, [1, tokens.length]);
      case "tokens.cache_positions":
        return integers(places, [tokens.length]);
      case "tokens.logits":
        return integers([1], []);
      case "cache.filled":
        return { data: new Uint8Array([this.#length > 0 ? 1 : 0]), shape: [1], dtype: "bool" };
      case undefined:
        throw new CotensorError("Unsupported", `${this.run.model.name}: ${def.role}: nothing gives its input ${port.name}`);
      default:
        return this.run.source(source, def, port);
    }
  }
}

/** Embeds tokens, for decoders that read embeddings. */
class Embeddings {
  readonly #leases: Tensor[] = [];

  private constructor(
    private readonly run: Run,
    private readonly stage: ModelStage,
    /** The token that stands for an image, and the features of the image. */
    private readonly image: { readonly token: number; readonly features: Input } | undefined,
  ) {}

  static async open(run: Run, { embed, images }: DecoderDef): Promise<Embeddings | undefined> {
    if (embed === null) return undefined;
    const features = images ? run.known(images.features) : undefined;
    const token = features && run.model.generation(run.task.name).imageToken();
    return new Embeddings(run, await run.model.stage(embed), features && token !== undefined ? { token, features } : undefined);
  }

  /** `[1, tokens, width]`: those of the graph, and for the image's tokens the rows of its features. They are released by `dispose`. */
  async of(tokens: readonly number[]): Promise<Input> {
    const { run, image } = this;
    const words = image ? tokens.filter((token) => token !== image.token) : tokens;
    const [embedded] = await this.stage.runAlone({ [this.stage.inputs[0]?.name ?? ""]: integers(words, [1, words.length]) }, [this.stage.outputs[0]?.name ?? ""], run.holder);
    if (!embedded) throw new CotensorError("Engine", `${run.model.name}: ${this.stage.role} gave no embeddings`);
    this.#leases.push(embedded);
    if (!image || words.length === tokens.length) return embedded;
    const width = embedded.shape[2] ?? 0;
    const [ofWords, ofImage] = [await run.numbers(embedded, "prompt with an image"), await run.numbers(image.features, "prompt with an image")];
    const merged = run.model.generation(run.task.name).mergedEmbeddings(Uint32Array.from(tokens), ofWords, ofImage, width);
    return { data: merged as Float32Array<ArrayBuffer>, shape: [1, tokens.length, width], dtype: "float32" };
  }

  dispose(): void {
    for (const lease of this.#leases.splice(0)) lease.dispose();
  }
}

function integers(values: readonly number[], shape: readonly number[]): HostArray {
  return { data: BigInt64Array.from(values, BigInt), shape, dtype: "int64" };
}

/** A cache without tokens, for graphs that read one from the beginning. */
function emptyCache({ name, dtype, shape }: Port): HostArray {
  const dims = shape.map((dimension, axis) => (typeof dimension === "number" ? dimension : axis === 0 ? 1 : 0));
  if (!dims.includes(0)) throw new CotensorError("Unsupported", `input ${name}: the graph reads a cache of fixed length`);
  return { data: new Uint8Array(), shape: dims, dtype };
}

/** The last row of logits `[1, tokens, vocabulary]`. */
async function lastRow(run: Run, logits: Tensor): Promise<Float32Array> {
  const [, rows = 0, width = 0] = logits.shape;
  if (logits.shape.length !== 3 || rows === 0) {
    throw new CotensorError("Unsupported", `${run.model.name}: logits of shape [${logits.shape.join(", ")}]; [1, tokens, vocabulary] is required`);
  }
  const row = logits.view([0, rows - 1, 0], [1, 1, width]);
  try {
    // The view's memory may be reused once it is released.
    return (await run.numbers(row, "scores of the next token")).slice();
  } finally {
    row.dispose();
  }
}

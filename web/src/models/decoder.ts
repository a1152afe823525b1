// The graphs of a decoder in the engine. The module chooses the tokens; the values of the tokens before are tensors on the model's device.
import type { Input } from "../engine/api.js";
import { CotensorError } from "../errors.js";
import type { Tensor } from "../tensor.js";
import { ArrayHandle, takeArray } from "./core.js";
import { LOGITS } from "./definition.js";
import type { Run } from "./run.js";
import type { ModelStage } from "./stages.js";

/**
 * The state of one decoding: `PageDecoder` of `web/models/src/decoder.rs`, which calls what is public. A method that fails returns a rejected promise.
 * `dispose` releases its tensors.
 */
export class Decoder {
  /** The values of the tokens before, by the name of the input that reads them. */
  readonly #cache = new Map<string, Tensor>();
  readonly #embedded: Tensor[] = [];

  private constructor(
    private readonly owner: Run,
    private readonly first: ModelStage,
    private readonly next: ModelStage,
    private readonly embedding: ModelStage | undefined,
  ) {}

  /** A decoder of the model of `run`, whose roles are the graphs of a task without the encoder. */
  static async open(run: Run, roles: readonly string[]): Promise<Decoder> {
    const embed = run.model.decoder?.embed;
    const [first, next] = await Promise.all(roles.slice(0, 2).map((role) => run.model.stage(role)));
    if (!first) throw new CotensorError("Unsupported", `${run.model.name}: the model has no decoder`);
    return new Decoder(run, first, next ?? first, embed ? await run.model.stage(embed) : undefined);
  }

  /** The graph that reads the beginning, and the one that continues it, as JSON. */
  graphs(): string {
    const ports = ({ role, inputs, outputs }: ModelStage): object => ({ role, inputs, outputs });
    return JSON.stringify([ports(this.first), ports(this.next)]);
  }

  /** A value that a stage made, or an input that a stage read. */
  value(source: string): Input | undefined {
    return this.owner.known(source);
  }

  shape(value: Input): Uint32Array {
    return Uint32Array.from(value.shape);
  }

  async numbers(value: Input): Promise<Float32Array> {
    return this.owner.numbers(value, "prompt with an image");
  }

  /** The embeddings of tokens, `[1, tokens, width]`. */
  async embed(data: BigInt64Array<ArrayBuffer>): Promise<Input> {
    const { owner: { model, holder }, embedding } = this;
    const [input, output] = [embedding?.inputs[0]?.name, embedding?.outputs[0]?.name];
    if (!embedding || input === undefined || output === undefined) throw new CotensorError("Unsupported", `${model.name}: the model has no graph that embeds tokens`);
    const [embedded] = await embedding.runAlone({ [input]: { data, shape: [1, data.length], dtype: "int64" } }, [output], holder);
    if (!embedded) throw new CotensorError("Engine", `${model.name}: ${embedding.role} gave no ${output}`);
    this.#embedded.push(embedded);
    return embedded;
  }

  /** Runs a graph, keeps `outputs` as the `inputs` of later runs, and gives the last row of the logits. */
  async run(isFirst: boolean, names: readonly string[], values: readonly (Input | ArrayHandle)[], outputs: readonly string[], inputs: readonly string[]): Promise<Float32Array> {
    await nextTurn();
    this.owner.call.signal?.throwIfAborted();
    const given = values.map((value, index): [string, Input] => [names[index] ?? "", value instanceof ArrayHandle ? takeArray(value) : value]);
    const stage = isFirst ? this.first : this.next;
    const made = await stage.runAlone(Object.fromEntries([...this.#cache, ...given]), [LOGITS, ...outputs], this.owner.holder).finally(() => this.#releaseEmbedded());
    const [logits, ...kept] = made;
    kept.forEach((value, index) => {
      const input = inputs[index] ?? "";
      this.#cache.get(input)?.dispose();
      this.#cache.set(input, value);
    });
    if (!logits) throw new CotensorError("Engine", `${this.owner.model.name}: ${stage.role} gave no ${LOGITS}`);
    try {
      return await lastRow(this.owner, logits);
    } finally {
      logits.dispose();
    }
  }

  /** Gives the program a piece of the text. */
  async text(piece: string): Promise<void> {
    this.owner.give(piece);
  }

  dispose(): void {
    for (const value of this.#cache.values()) value.dispose();
    this.#cache.clear();
    this.#releaseEmbedded();
  }

  #releaseEmbedded(): void {
    for (const value of this.#embedded.splice(0)) value.dispose();
  }
}

/** The last row of logits `[1, tokens, vocabulary]`. */
export async function lastRow(run: Run, logits: Tensor): Promise<Float32Array> {
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

/** Lets the events of this thread run: messages, and what a user does. An engine on the CPU runs from token to token without a pause otherwise. */
export function nextTurn(): Promise<void> {
  const { port1, port2 } = new MessageChannel();
  return new Promise((resolve) => {
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(undefined);
  });
}

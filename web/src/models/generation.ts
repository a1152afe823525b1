// Texts that decoders write: continuations, summaries, translations, captions of images.
import type { Input } from "../engine/api.js";
import { CotensorError } from "../errors.js";
import { identity } from "../stage/keys.js";
import type { Answer, Output } from "./answers.js";
import { hashes, runTask, takeArray, type Tokens as EncodedTexts } from "./core.js";
import { Decoder } from "./decoder.js";
import { reads, type Task } from "./definition.js";
import type { AnswerOptions } from "./model.js";
import type { Run } from "./run.js";

/** Runs the encoders of the task, and decodes. */
export async function generate(run: Run): Promise<{ answer: Answer; outputs: Output[] }> {
  const { model, task, inputs, options } = run;
  if (task.prompt && inputs.text === undefined) throw new CotensorError("Invalid", `text: ${task.name} of ${model.name} continues a text`);
  const [encoders, decoders] = model.rolesOf(task);
  const read: Input[] = [];
  for (const role of encoders) {
    const result = await run.result(role);
    read.push(result);
    // The tensor of another model stands for its text; the text of the call is not read.
    if (run.isGiven(role) && reads(model.def(role), "text")) run.setTextLength(result.shape[1] ?? 0);
  }
  const generation = model.generation(task.name);
  let text: number[] = [];
  let prompt: number[];
  if (task.prompt) {
    text = idsOf(run, generation.prompt(model.text, inputs.text ?? "", options.chat));
    const features = model.decoder?.images ? run.known(model.decoder.images.features) : undefined;
    prompt = features ? [...generation.expandedPrompt(model.text, Uint32Array.from(text), Uint32Array.from(features.shape))] : text;
  } else {
    if (task.begins && inputs.text !== undefined) text = idsOf(run, model.text.encodePlain(inputs.text));
    prompt = [generation.start(), ...text];
  }
  const continues = task.prompt || (task.begins && inputs.text !== undefined);
  const tokens = await decode(run, decoders, prompt, read, { continues });
  const answer: Answer = {
    type: "text",
    text: model.text.decodeAfter(Uint32Array.from(continues ? prompt : []), tokens),
    tokens: tokens.length,
    prompt_tokens: continues ? text.length : run.textTokens,
  };
  return { answer, outputs: [tokensOutput(tokens)] };
}

/** How a decoder writes after a prompt. */
export interface DecodeOptions {
  /** Whether the tokens continue the text of the prompt. */
  readonly continues?: boolean;
  /** Whether the text has timestamps. */
  readonly timestamps?: boolean;
  /** Whether the program gets the pieces of the text here; it does by default. */
  readonly givesText?: boolean;
}

/** The tokens that a decoder writes after `prompt`. `read`: the other inputs of its graphs. Equal decodings are computed once. */
export async function decode(run: Run, roles: readonly string[], prompt: readonly number[], read: readonly Input[], { continues = false, timestamps = false, givesText = true }: DecodeOptions = {}): Promise<Uint32Array> {
  const { model, task, options } = run;
  const decoding = model.generation(task.name).decode(model.text, Uint32Array.from(prompt), continues, userOf(model.name, task, options), timestamps);
  try {
    run.note(...decoding.notices());
    const graphs = [...roles, ...(model.decoder?.embed ? [model.decoder.embed] : [])];
    const identities = read.map((value) => identity(hashes, value));
    // Whether this call decodes; another one may.
    let isOurs = false;
    const tokens = await run.once(graphs, task.name, [...identities, decoding.settingsHash(), tokensHash(prompt)], async () => {
      const decoder = await Decoder.open(run, roles, givesText ? (piece) => run.give(piece) : undefined);
      isOurs = true;
      try {
        return Uint32Array.from(await runTask<number[]>(decoding.run(decoder)));
      } finally {
        decoder.dispose();
      }
    });
    if (givesText) for (const piece of decoding.rest(isOurs ? new Uint32Array() : tokens)) run.give(piece);
    run.note(...[decoding.cutNotice(tokens.length) ?? []].flat());
    return tokens;
  } finally {
    decoding.free();
  }
}

/** The numbers behind a text: its tokens. */
export function tokensOutput(tokens: Uint32Array): Output {
  const values = Float32Array.from(tokens);
  return { name: "tokens", shape: [values.length], values };
}

/** Options of the Rust library that pages do not read: texts are an input of `process`. */
const UNREAD = ["texts", "encoder"];

/**
 * The user that `ModelFamily.checkOptions` and `Generation.decode` read: JSON with the options that the program gave, which the module checks.
 * `texts` are those that are scored beside the text.
 */
export function userOf(model: string, task: Task, options: AnswerOptions, texts: readonly string[] = []): string {
  const unread = UNREAD.find((name) => (options as Readonly<Record<string, unknown>>)[name] !== undefined);
  if (unread !== undefined) throw new CotensorError("Invalid", `${unread}: pages do not read this option`);
  // JSON has no NaN and no infinity: they would become `null`. It has no BigInt.
  const inJson = (_: string, value: unknown): unknown => ((typeof value === "number" && !Number.isFinite(value)) || typeof value === "bigint" ? String(value) : value);
  return JSON.stringify({ ...options, name: model, model, task: task.name, ...(texts.length > 0 ? { texts } : {}) }, inJson);
}

/** The ids of one text's tokens, which are freed. */
function idsOf(run: Run, tokens: EncodedTexts): number[] {
  try {
    const ids = takeArray(tokens.ids());
    if (tokens.truncated()[0] === 1) run.notices.push(`text: truncated to ${ids.shape[1] ?? 0} tokens`);
    return Array.from(ids.data as BigInt64Array, Number);
  } finally {
    tokens.free();
  }
}

function tokensHash(tokens: readonly number[]): string {
  return identity(hashes, { data: Uint32Array.from(tokens), shape: [tokens.length] });
}

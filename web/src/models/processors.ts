// What brings texts, images and sounds into the form that a model reads.
import type { HostArray, Input, Port, RunResult } from "../engine/api.js";
import { CotensorError } from "../errors.js";
import { publishArray } from "../engine/results.js";
import { bytesOf } from "../types.js";
import {
  AnswerReader,
  AudioProcessor,
  ConfigFiles,
  contentHash,
  Generation,
  hashes,
  ImageProcessor,
  imageSize,
  inputKey,
  PairPrompts,
  SentencePooling,
  SpeechWindows,
  soundLength,
  takeArray,
  TextProcessor,
  type ModelFamily,
  type Tokens as EncodedTexts,
} from "./core.js";
import { dimensionsOf, type FamilyDescription, type Task } from "./definition.js";
import type { ModelFolder } from "./folder.js";
import type { ModelHost } from "./host.js";
import type { Encoded, Inputs, Medium, Pixels, Samples, Tokens } from "./inputs.js";
import type { LogitScale } from "./similarity.js";
import { TokenRows } from "./token_rows.js";

const TEXT_FILES = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"];
const MEDIA_FILES = ["preprocessor_config.json", "processor_config.json"];
const MODULES_FILE = "modules.json";
const SENTENCE_FILES = [MODULES_FILE, "config_sentence_transformers.json"];
/** What is read beside the list of modules. */
const LISTED_FILES = ["sentence_bert_config.json"];
/** What is read without the list. */
const UNLISTED_FILES = ["1_Pooling/config.json", "2_Dense/config.json", "3_Dense/config.json", "2_LayerNorm/config.json"];
/** The weights of a module of sentence-transformers, in its folder. */
const MODULE_WEIGHTS_FILE = "model.safetensors";
/** More modules are refused. */
const MODULES_MAX = 64;
const GENERATION_FILES = ["generation_config.json"];
const CHAT_FILES = ["chat_template.jinja", "chat_template.json"];
const CTC_FILES = ["vocab.json", "tokenizer.json", "tokenizer_config.json"];

/** The files that the processors of a family read, if the model has them. */
function filesOf({ tasks, decoder }: FamilyDescription): string[] {
  const reads = (medium: Medium): boolean => tasks.some((task) => task.reads.includes(medium));
  return [
    ...(reads("text") || decoder ? TEXT_FILES : []),
    ...(reads("image") || reads("audio") ? MEDIA_FILES : []),
    ...(tasks.some(({ answer }) => answer === "sentence") ? SENTENCE_FILES : []),
    ...(decoder ? GENERATION_FILES : []),
    // Causal language models score pairs of texts after a prompt.
    ...(tasks.some(({ prompt, answer, head }) => prompt || (answer === "scores" && !head)) ? CHAT_FILES : []),
    ...(tasks.some(({ answer }) => answer === "ctc") ? CTC_FILES : []),
  ];
}

/** A module of sentence-transformers: its folder, and its files there. */
interface Module {
  path: string;
  settings: string;
  hasWeights: boolean;
}

/** The arrays of a text that graphs read. */
export interface TextArrays {
  readonly ids: HostArray;
  readonly mask: HostArray;
  readonly types: HostArray;
  readonly positions: HostArray;
  /** Whether the text was longer than the limit. */
  readonly truncated: boolean;
}

/** The parts of a run that its inputs are prepared with. */
export interface PreparedRun {
  readonly model: { readonly backend: ModelHost; check(): void };
  readonly holder: string;
  readonly inputs: Inputs;
  readonly notices: string[];
  setValue(source: string, value: Input): void;
}

/** The processors of one model. Each is made when it is first used. */
export class Processors {
  #text: TextProcessor | undefined;
  #sentenceText: TextProcessor | undefined;
  #sentence: SentencePooling | undefined;
  #image: ImageProcessor | undefined;
  #audio: AudioProcessor | undefined;
  #answers: AnswerReader | undefined;
  #pairs: PairPrompts | undefined;
  /** The numbers of tokens of prompts. */
  readonly #promptTokens = new Map<string, number>();
  readonly #generations = new Map<string, Generation>();

  private constructor(
    private readonly definition: ModelFamily,
    private readonly files: ConfigFiles,
    private readonly name: string,
  ) {}

  static async open(definition: ModelFamily, description: FamilyDescription, folder: ModelFolder, config: string): Promise<Processors> {
    const files = new ConfigFiles();
    files.set("config.json", config);
    const read = async (names: readonly string[]): Promise<readonly (readonly [file: string, text: string | undefined])[]> => {
      const texts = await Promise.all(names.map(async (file) => [file, await folder.text(file)] as const));
      for (const [file, text] of texts) if (text !== undefined) files.set(file, text);
      return texts;
    };
    const asked = filesOf(description);
    const modules = (await read(asked)).find(([file]) => file === MODULES_FILE)?.[1];
    if (asked.includes(MODULES_FILE)) await read(modules === undefined ? UNLISTED_FILES : LISTED_FILES);
    for (const { path, settings, hasWeights } of modules === undefined ? [] : modulesOf(modules)) {
      const file = `${path}/${settings}`;
      const text = await folder.text(file);
      if (text !== undefined) files.set(file, text);
      const weights = `${path}/${MODULE_WEIGHTS_FILE}`;
      if (hasWeights && (await folder.has(weights))) files.setBytes(weights, await folder.bytes(weights));
    }
    return new Processors(definition, files, folder.modelId);
  }

  get text(): TextProcessor {
    this.#text ??= new TextProcessor(this.files, this.definition);
    return this.#text;
  }

  get image(): ImageProcessor {
    this.#image ??= new ImageProcessor(this.files, this.definition);
    return this.#image;
  }

  get audio(): AudioProcessor {
    this.#audio ??= new AudioProcessor(this.files, this.definition);
    return this.#audio;
  }

  get sentence(): SentencePooling {
    this.#sentence ??= new SentencePooling(this.files, this.definition, this.name);
    return this.#sentence;
  }

  /** The prompts of a causal language model that scores pairs of texts. */
  get pairs(): PairPrompts {
    this.#pairs ??= new PairPrompts(this.files, this.sentence);
    return this.#pairs;
  }

  generation(task: string): Generation {
    const found = this.#generations.get(task) ?? new Generation(this.files, this.definition, task);
    this.#generations.set(task, found);
    return found;
  }

  /** The hash of every parameter that affects the input of a medium. */
  fingerprint(medium: Medium): string {
    return this[medium].fingerprint;
  }

  /** The arrays of one text. */
  encodeText(text: string, fills: boolean): TextArrays {
    return arraysOf(this.text.encode([text], fills ? this.text.maxTokens : undefined));
  }

  /** The arrays of one text to embed, behind the prompt of this name, or the default prompt. */
  encodeSentence(text: string, promptName: string | undefined, fills: boolean): TextArrays {
    const processor = this.#forSentences();
    return arraysOf(processor.encode([this.sentence.prompt(promptName) + text], fills ? processor.maxTokens : undefined));
  }

  /** The arrays of two texts in one row, of `length` tokens if the graph reads a fixed number. */
  encodePair(query: string, text: string, length: number | undefined): TextArrays {
    return arraysOf(this.text.encodePairs([query], [text], length));
  }

  /** The arrays of the prompt with two texts for a causal language model. */
  encodePairPrompt(query: string, text: string): TextArrays {
    return arraysOf(this.pairs.encode(this.#forSentences(), query, text));
  }

  tokens(text: string): Tokens {
    const { ids, mask, types } = this.encodeText(text, false);
    const list = ({ data }: HostArray): number[] => Array.from(data as BigInt64Array, Number);
    return { text, input_ids: list(ids), attention_mask: list(mask), token_type_ids: list(types) };
  }

  /** Reads the answers of a task. `labels` is labels.json, and `scale` is that of similarities, for answers that need them. */
  answers({ answer }: Task, labels: string | undefined, scale: LogitScale | undefined): AnswerReader {
    const reader = (this.#answers ??= new AnswerReader(this.definition, this.name));
    if (labels !== undefined) reader.setLabels(labels);
    if (scale) reader.setScale(JSON.stringify(scale));
    if (answer === "label-per-token") reader.setText(this.text);
    if (answer === "sentence") reader.setSentence(this.sentence);
    if (answer === "ctc") reader.setVocabulary(this.files);
    if (answer === "scores") reader.setScoreFunction(this.files);
    return reader;
  }

  /** The tokens of a text, for answers that depend on them. */
  answerTokens(text: string, { answer }: Task, promptName: string | undefined): EncodedTexts | undefined {
    if (answer === "label-per-token") return this.text.encode([text], undefined);
    return answer === "sentence" ? this.#forSentences().encode([this.sentence.prompt(promptName) + text], undefined) : undefined;
  }

  /** Texts to embed as tokens, behind the prompt of this name, or the default prompt. */
  sentenceTokens(texts: readonly string[], promptName: string | undefined, length: number | undefined): TokenRows {
    const prompt = this.sentence.prompt(promptName);
    return new TokenRows(this.#forSentences().encode(texts.map((text) => prompt + text), length), length);
  }

  /** The number of tokens of the prompt of this name, or of the default prompt. */
  promptTokens(promptName: string | undefined): number {
    const prompt = this.sentence.prompt(promptName);
    const found = this.#promptTokens.get(prompt) ?? (prompt === "" ? 0 : this.#forSentences().prefixTokens(prompt));
    this.#promptTokens.set(prompt, found);
    return found;
  }

  /** The number of the task of a prompt as an input of a graph, for `count` texts. */
  taskInput(port: Port, task: number, count: number): HostArray {
    return takeArray(SentencePooling.taskInput(port.name, dimensionsOf(port), task, count));
  }

  /** An empty cache, for a graph that reads one. */
  emptyCache(port: Port): HostArray {
    return takeArray(PairPrompts.emptyCache(JSON.stringify(port)));
  }

  /** An embedding with the configured number of dimensions. */
  truncated(embedding: Float32Array): Float32Array {
    return this.sentence.truncated(embedding);
  }

  /** The embedding of one text from its hidden states. */
  pool(rows: Float32Array, width: number, mask: Uint8Array, promptTokens: number): Float32Array {
    return this.sentence.pool(rows, width, mask, promptTokens);
  }

  /** Prepares the image or the sound of a run, once for equal files. */
  async prepare(medium: "image" | "audio", run: PreparedRun): Promise<void> {
    const input = run.inputs[medium];
    if (input === undefined) throw new CotensorError("Invalid", `${medium}: ${this.name} reads an ${medium}`);
    const name = medium === "image" ? "image.pixels" : "audio.features";
    const key = inputKey(name, this.fingerprint(medium), this.#contentOf(input));
    const { store, computations } = run.model.backend;
    const tensorName = `${name}/${key}`;
    const { outputs } = await computations.once({ key, names: [tensorName], kind: "other", holder: run.holder }, async (): Promise<RunResult> => {
      // The model may have been disposed while another call computed this.
      run.model.check();
      const start = performance.now();
      const { data, shape } = takeArray(medium === "image" ? this.#pixels(input as Pixels | Encoded) : this.#features(input as Samples | Encoded));
      const output = { name: tensorName, provenance: hashes.provenance(key, 0), cached: true };
      return publishArray(store, run.holder, output, { data, shape, dtype: "float32" }, performance.now() - start);
    });
    for (const tensor of outputs) run.setValue(name, tensor);
    run.model.check();
    if (medium === "audio") this.#noteSound(input as Samples | Encoded, run);
  }

  /** The windows of a sound that is longer than the model's; nothing for another sound, and for a model without timestamps. */
  speechWindows(sound: Samples | Encoded, task: string, notices: string[]): SpeechWindows | undefined {
    if (!this.generation(task).hasTimestamps) return undefined;
    const windows = sound instanceof Uint8Array ? SpeechWindows.ofFile(this.audio, sound) : SpeechWindows.ofSamples(this.audio, sound.samples, sound.samplingRate);
    if (windows) this.#noteRate(lengthOf(sound)[0], notices);
    return windows;
  }

  /** Which pixels of the preprocessed image are not padding, in the shape of the graph's input. */
  mask([width, height]: ImageSize, port: Port): HostArray {
    return takeArray(this.image.mask(width, height, dimensionsOf(port)));
  }

  free(): void {
    for (const each of [this.#answers, this.#text, this.#sentenceText, this.#sentence, this.#image, this.#audio, this.#pairs, ...this.#generations.values(), this.files]) each?.free();
  }

  #forSentences(): TextProcessor {
    this.#sentenceText ??= this.text.forSentences(this.sentence);
    return this.#sentenceText;
  }

  #contentOf(input: Pixels | Samples | Encoded): string {
    if (input instanceof Uint8Array) return contentHash(input);
    if ("rgba" in input) return hashes.identity("uint8", [input.height, input.width, 4], bytesOf(input.rgba));
    const samples = hashes.identity("float32", [input.samples.length], bytesOf(input.samples));
    return contentHash(new TextEncoder().encode(`${samples} ${input.samplingRate}`));
  }

  #pixels(image: Pixels | Encoded): ReturnType<ImageProcessor["process"]> {
    return image instanceof Uint8Array ? this.image.process(image) : this.image.processPixels(bytesOf(image.rgba), image.width, image.height);
  }

  #features(sound: Samples | Encoded): ReturnType<AudioProcessor["process"]> {
    return sound instanceof Uint8Array ? this.audio.process(sound) : this.audio.processSamples(sound.samples, sound.samplingRate);
  }

  /** Whether the sound is longer than the model's window, as an input of its graph. A model reads a window of sound; the rest is not silently left out. */
  #noteSound(sound: Samples | Encoded, run: Pick<PreparedRun, "notices" | "setValue">): void {
    const [rate, frames] = lengthOf(sound);
    const [seconds, longer] = [frames / rate, this.audio.isLonger(rate, frames)];
    if (longer) run.setValue("audio.longer", takeArray(longer));
    this.#noteRate(rate, run.notices);
    if (seconds > this.audio.seconds) run.notices.push(`audio: ${seconds.toFixed(1)} s; the model reads the first ${this.audio.seconds} s. StreamingProcessor reads sounds of any length`);
  }

  #noteRate(rate: number, notices: string[]): void {
    if (rate !== this.audio.sampleRate) notices.push(`audio: resampled from ${rate} to ${this.audio.sampleRate} Hz`);
  }
}

/** Width and height, in pixels. */
export type ImageSize = readonly [width: number, height: number];

/** The size of an image before preprocessing. */
export function sizeOf(image: Pixels | Encoded): ImageSize {
  if (!(image instanceof Uint8Array)) return [image.width, image.height];
  const [width = 0, height = 0] = imageSize(image);
  return [width, height];
}

function lengthOf(sound: Samples | Encoded): [samplingRate: number, frames: number] {
  if (!(sound instanceof Uint8Array)) return [sound.samplingRate, sound.samples.length];
  const [samplingRate = 0, frames = 0] = soundLength(sound);
  return [samplingRate, frames];
}

/** The arrays of one text's tokens, which are freed. */
function arraysOf(tokens: EncodedTexts): TextArrays {
  try {
    const [ids, mask, types, positions] = [tokens.ids(), tokens.mask(), tokens.types(), tokens.positions()].map(takeArray) as [HostArray, HostArray, HostArray, HostArray];
    return { ids, mask, types, positions, truncated: tokens.truncated()[0] === 1 };
  } finally {
    tokens.free();
  }
}

/** The modules that modules.json lists. The processor that reads the file refuses a list that is not one. */
function modulesOf(text: string): Module[] {
  const modules: Module[] = [];
  for (const module of listed(text).slice(0, MODULES_MAX)) {
    const { path, type } = (module ?? {}) as { path?: unknown; type?: unknown };
    // The tokenizer's files are beside modules.json.
    if (typeof path !== "string" || typeof type !== "string" || !/^[\w-]{1,100}$/.test(path)) continue;
    modules.push({ path, settings: type.endsWith(".Transformer") ? "sentence_bert_config.json" : "config.json", hasWeights: /\.(Dense|LayerNorm)$/.test(type) });
  }
  return modules;
}

function listed(text: string): unknown[] {
  try {
    const list = JSON.parse(text) as unknown;
    return Array.isArray(list) ? list : [];
  } catch {
    return [];
  }
}

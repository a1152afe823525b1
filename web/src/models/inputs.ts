// The inputs that `process` takes: texts, tokens, images and sounds, in the forms that browsers give.
import { CotensorError } from "../errors.js";
import { baseAddress } from "../node.js";
import { bytesOfAnswer, checkAnswer, send, STALL_MILLISECONDS } from "../weights/body.js";

/** The tokens of a text, as a model reads them. `process` takes them in place of the text, and refuses others than the text's. */
export interface Tokens {
  readonly text: string;
  readonly input_ids: readonly number[];
  /** 1 for a token, 0 for padding. */
  readonly attention_mask: readonly number[];
  /** The segment of each token. */
  readonly token_type_ids: readonly number[];
}

/** Pixels: red, green, blue and opacity of each, row by row. */
export interface Pixels {
  readonly rgba: Uint8Array | Uint8ClampedArray;
  readonly width: number;
  readonly height: number;
}

/** Samples of one channel, from -1 to 1. */
export interface Samples {
  readonly samples: Float32Array;
  /** In hertz. */
  readonly samplingRate: number;
}

/** The bytes of an image file or of a sound file. */
export type Encoded = Uint8Array;

/** A file: its bytes, or its address. */
export type FileInput = Blob | ArrayBuffer | Uint8Array | string | URL;
/** A picture of a page. Of an `<img>`, its pixels in their natural size. */
export type Picture = ImageData | ImageBitmap | HTMLImageElement | HTMLCanvasElement | OffscreenCanvas;

/** What `process` takes. */
export type ModelInput =
  | string
  | Tokens
  /** Texts, each of which has an embedding. */
  | readonly string[]
  | {
      readonly text?: string | Tokens;
      /** Texts that are compared with the image, or with the sound, or scored beside `text`; alone, texts to embed. */
      readonly texts?: readonly string[];
      readonly image?: FileInput | Picture;
      /** Pixels with `width` and `height`. */
      readonly imageData?: ImageData | Uint8Array | Uint8ClampedArray;
      readonly width?: number;
      readonly height?: number;
      /** A file, samples with `samplingRate`, or a sound of Web Audio, whose channels are mixed. */
      readonly audio?: FileInput | Float32Array | AudioBuffer;
      /** In hertz; 16,000 by default. */
      readonly samplingRate?: number;
    };

/** Inputs in one form of each kind. */
export interface Inputs {
  readonly text?: string;
  /** The text's tokens, as the program has them. */
  readonly tokens?: Tokens;
  readonly texts?: readonly string[];
  readonly image?: Pixels | Encoded;
  readonly audio?: Samples | Encoded;
}

/** The kinds of inputs. */
export const MEDIA = ["text", "image", "audio"] as const;
export type Medium = (typeof MEDIA)[number];

/** What is read beside pixels and samples. */
const FIELDS: readonly string[] = ["width", "height", "samplingRate"];
const TOKEN_FIELDS = ["input_ids", "attention_mask", "token_type_ids"] as const;
const DEFAULT_SAMPLING_RATE = 16_000;
const IMAGE_SIDE_MAX = 1 << 14;
const TEXTS_MAX = 10_000;
/** The most bytes of a file. An image is in the module's memory while it is decoded; a sound is read in parts. */
const FILE_BYTES_MAX = { image: 2 ** 28, audio: 2 ** 30 } as const;

/** The kinds of inputs that are there. Texts to compare with count as text. */
export function mediaOf(inputs: Inputs): Medium[] {
  return MEDIA.filter((medium) => inputs[medium] !== undefined || (medium === "text" && inputs.texts !== undefined));
}

/** Brings the forms of `input` into one. */
export async function readInputs(input: ModelInput): Promise<Inputs> {
  if (typeof input === "string") return { text: input };
  if (Array.isArray(input)) return { texts: checkTexts(input as readonly string[]) };
  if (typeof input !== "object" || input === null) throw invalid("input", "a text, tokens, or an object with text, image or audio is required");
  if ("input_ids" in input) return textOf(input);
  const { text, texts, image, imageData, audio, ...rest } = input as Exclude<ModelInput, string | Tokens | readonly string[]>;
  // A key without a value is no input.
  const unknown = Object.entries(rest).find(([name, value]) => value !== undefined && !FIELDS.includes(name))?.[0];
  if (unknown !== undefined) throw invalid(unknown, `an unknown input; text, texts, image, imageData, audio, ${FIELDS.join(", ")} are read`);
  const read: { -readonly [Key in keyof Inputs]: Inputs[Key] } = {};
  if (text !== undefined) Object.assign(read, textOf(text));
  if (texts !== undefined) read.texts = checkTexts(texts);
  if (image !== undefined && imageData !== undefined) throw invalid("imageData", "give either image or imageData");
  if (imageData !== undefined) read.image = pixels(imageData, rest.width, rest.height);
  const [imageRead, audioRead] = await Promise.all([
    image === undefined ? undefined : readImage(image),
    audio === undefined ? undefined : readAudio(audio, rest.samplingRate ?? DEFAULT_SAMPLING_RATE),
  ]);
  if (imageRead) read.image = imageRead;
  if (audioRead) read.audio = audioRead;
  if (mediaOf(read).length === 0) throw invalid("input", "it has no text, image or audio");
  return read;
}

function textOf(text: string | Tokens): Inputs {
  if (typeof text === "string") return { text };
  if (typeof text?.text !== "string") throw invalid("text", "a text is required, or tokens that tokenize() gave, with their text");
  return { text: text.text, tokens: copied(text) };
}

/** A copy: the program may change its lists before the model reads them. */
function copied(tokens: Tokens): Tokens {
  const lists = TOKEN_FIELDS.filter((field) => tokens[field] !== undefined).map((field) => [field, Array.from(tokens[field] ?? [], Number)]);
  return { text: tokens.text, ...Object.fromEntries(lists) } as Tokens;
}

/** Checks that a program's tokens are those of their text: the model computes with these. */
export function checkTokens(given: Tokens, ofText: Tokens): void {
  for (const field of TOKEN_FIELDS) {
    // Programs may leave out what their model does not read.
    const tokens = given[field] as readonly number[] | undefined;
    if (tokens === undefined && field !== "input_ids") continue;
    const [numbers, expected] = [Array.from(tokens ?? [], Number), ofText[field]];
    if (numbers.join() !== expected.join()) {
      throw invalid(field, `[${shown(numbers)}] are not those of the text ${JSON.stringify(given.text.slice(0, 40))}, [${shown(expected)}]; pass a text alone, or tokens that tokenize() gave`);
    }
  }
}

const shown = (numbers: readonly number[]): string => `${numbers.slice(0, 12).join(", ")}${numbers.length > 12 ? ", …" : ""}`;

function checkTexts(texts: readonly string[]): readonly string[] {
  if (!Array.isArray(texts) || texts.length === 0 || texts.length > TEXTS_MAX || texts.some((each) => typeof each !== "string")) {
    throw invalid("texts", `a list of 1 to ${TEXTS_MAX} texts is required`);
  }
  return [...texts];
}

function pixels(data: ImageData | Uint8Array | Uint8ClampedArray, width?: number, height?: number): Pixels {
  const image = ArrayBuffer.isView(data) ? { data, width, height } : data;
  const size = { width: image.width ?? 0, height: image.height ?? 0 };
  for (const [side, length] of Object.entries(size)) {
    if (!Number.isInteger(length) || length < 1 || length > IMAGE_SIDE_MAX) throw invalid(side, `an integer from 1 to ${IMAGE_SIDE_MAX} is required`);
  }
  // A copy: the program may draw its next picture there before the model reads this one.
  const rgba = (image.data as Uint8Array | Uint8ClampedArray).slice();
  const bytes = size.width * size.height * 4;
  if (rgba.byteLength !== bytes) {
    throw invalid("imageData", `${rgba.byteLength} bytes; ${size.width} x ${size.height} pixels of red, green, blue and opacity have ${bytes}`);
  }
  return { rgba, ...size };
}

async function readImage(image: FileInput | Picture): Promise<Pixels | Encoded> {
  if (isA("ImageData", image)) return pixels(image as ImageData);
  if (isA("HTMLImageElement", image)) {
    const element = image as HTMLImageElement;
    await decoded(element);
    return drawn(element, element.naturalWidth, element.naturalHeight);
  }
  // Read before the first wait: the program may draw its next picture there.
  const isDrawable = ["ImageBitmap", "HTMLCanvasElement", "OffscreenCanvas"].some((name) => isA(name, image));
  if (!isDrawable) return file(image as FileInput, "image");
  const { width, height } = image as ImageBitmap;
  return drawn(image as ImageBitmap, width, height);
}

async function decoded(element: HTMLImageElement): Promise<void> {
  try {
    await element.decode();
  } catch {
    throw new CotensorError("Io", `image: the browser could not load ${element.currentSrc || element.src || "an <img> without an address"}`);
  }
}

function drawn(image: CanvasImageSource, width: number, height: number): Pixels {
  for (const [side, length] of Object.entries({ width, height })) {
    if (length < 1 || length > IMAGE_SIDE_MAX) throw invalid(`image: ${side}`, `${length} pixels; 1 to ${IMAGE_SIDE_MAX} are read`);
  }
  const context = new OffscreenCanvas(width, height).getContext("2d");
  if (!context) throw new CotensorError("Io", "image: the browser has no memory for a canvas");
  context.drawImage(image, 0, 0);
  try {
    return pixels(context.getImageData(0, 0, width, height));
  } catch (error) {
    if ((error as Error).name !== "SecurityError") throw error;
    const way = 'load it with crossorigin="anonymous" from a server that allows it (CORS)';
    throw new CotensorError("Refused", `image: the browser does not give the pixels of another site's picture; ${way}`);
  }
}

async function readAudio(audio: FileInput | Float32Array | AudioBuffer, samplingRate: number): Promise<Samples | Encoded> {
  if (isA("AudioBuffer", audio)) return mixed(audio as AudioBuffer);
  if (!(audio instanceof Float32Array)) return file(audio as FileInput, "audio");
  if (!(samplingRate > 0) || !Number.isFinite(samplingRate)) throw invalid("samplingRate", "a number of hertz above 0 is required");
  return { samples: audio.slice(), samplingRate };
}

/** The mean of the channels. */
function mixed(audio: AudioBuffer): Samples {
  const samples = new Float32Array(audio.length);
  for (let channel = 0; channel < audio.numberOfChannels; channel += 1) {
    audio.getChannelData(channel).forEach((value, index) => (samples[index] = (samples[index] ?? 0) + value / audio.numberOfChannels));
  }
  return { samples, samplingRate: audio.sampleRate };
}

async function file(data: FileInput, field: keyof typeof FILE_BYTES_MAX): Promise<Encoded> {
  checkSize(data, field);
  if (data instanceof Uint8Array) return data.slice();
  if (data instanceof ArrayBuffer) return new Uint8Array(data.slice(0));
  if (data instanceof Blob) return new Uint8Array(await data.arrayBuffer());
  if (typeof data === "string" || data instanceof URL) return fileAt(data, field);
  throw invalid(field, "a Blob, an ArrayBuffer, an address, or one of the forms in the documentation is required");
}

/** Refuses a file that is too large before it is copied. */
function checkSize(data: FileInput, field: keyof typeof FILE_BYTES_MAX): void {
  const bytes = data instanceof Blob ? data.size : data instanceof Uint8Array || data instanceof ArrayBuffer ? data.byteLength : 0;
  if (bytes > FILE_BYTES_MAX[field]) throw invalid(field, `a file of ${bytes} bytes; at most ${FILE_BYTES_MAX[field]} are read`);
}

/** The bytes of a file at an address. */
async function fileAt(address: string | URL, field: keyof typeof FILE_BYTES_MAX): Promise<Encoded> {
  let url;
  try {
    url = new URL(address, baseAddress()).href;
  } catch {
    throw invalid(field, `${JSON.stringify(String(address).slice(0, 100))} is not a URL here`);
  }
  const response = await send(url, {});
  checkAnswer(url, response);
  const limits = { maxBytes: FILE_BYTES_MAX[field], size: undefined, signal: undefined, cache: "default", retries: 3 } as const;
  return bytesOfAnswer(response, { ...limits, url, stallMilliseconds: STALL_MILLISECONDS, progress: undefined });
}

/** Whether a value is of a class that this thread has. */
function isA(name: string, value: unknown): boolean {
  const Class = (globalThis as Record<string, unknown>)[name];
  return typeof Class === "function" && value instanceof Class;
}

function invalid(field: string, message: string): CotensorError {
  return new CotensorError("Invalid", `${field}: ${message}`);
}

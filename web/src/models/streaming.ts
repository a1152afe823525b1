// Speech that is transcribed while it plays, and a text model on each part of the transcript.
import { CotensorError } from "../errors.js";
import type { FamilyModel } from "./model.js";
import type { Result } from "./result.js";

/** Options of a stream. */
export interface StreamingOptions {
  /** A speech model such as Whisper. */
  readonly audioModel: FamilyModel;
  /** A model that reads each part of the transcript. */
  readonly textModel?: FamilyModel;
  /** `false` releases the tensors of a part before the next one is read, and not once it was read. */
  readonly useSharedTensors?: boolean;
  /** Of the chunks, in hertz; 16,000 by default. */
  readonly samplingRate?: number;
  /** Seconds of sound that are transcribed at once; 30 by default, the window of Whisper. Less gives the first text sooner. */
  readonly windowSeconds?: number;
}

/** A finished part of the transcript. */
export interface StreamSegment {
  /** Beginning and end, in seconds from the beginning of the stream. */
  readonly start: number;
  readonly end: number;
  readonly text: string;
  /** The result of the text model, if there is one and the part has a text. */
  readonly result: Result | undefined;
}

/** The state of a stream after a chunk. */
export interface StreamResult {
  /** The transcript so far. */
  readonly text: string;
  /** The parts that were finished since the last result. */
  readonly segments: readonly StreamSegment[];
  /** Resolves with the next finished parts; at once if there is nothing to wait for. A producer that awaits it cannot run ahead. */
  readonly ready: Promise<readonly StreamSegment[]>;
}

const SAMPLING_RATE = 16_000;
const WINDOW_SECONDS = 30;
/** How many windows may wait to be transcribed. More chunks are refused. */
const WAITING_MAX = 2;

/** Transcribes chunks of sound. The memory is bounded: a window of sound that fills, and few that wait for the models. */
export class StreamingProcessor {
  readonly #callbacks: ((chunk: Float32Array) => unknown)[] = [];
  readonly #rate: number;
  readonly #window: Float32Array<ArrayBuffer>;
  /** Samples in the window. */
  #filled = 0;
  /** Samples before the window. */
  #passed = 0;
  #waiting = 0;
  #last: Promise<readonly StreamSegment[]> = Promise.resolve([]);
  #error: unknown;
  #text = "";
  #finished: StreamSegment[] = [];
  /** The results of the last part, for `useSharedTensors: false`. */
  /** Ends when all pushed chunks were added. */
  #adding: Promise<void> = Promise.resolve();
  #made: { readonly model: FamilyModel; readonly result: Result }[] = [];

  constructor(private readonly options: StreamingOptions) {
    const { samplingRate = SAMPLING_RATE, windowSeconds = WINDOW_SECONDS } = options;
    if (!(samplingRate >= 1000 && samplingRate <= 768_000)) throw new CotensorError("Invalid", "samplingRate: 1,000 to 768,000 hertz are allowed");
    if (!(windowSeconds > 0 && windowSeconds <= WINDOW_SECONDS)) throw new CotensorError("Invalid", `windowSeconds: above 0 and at most ${WINDOW_SECONDS} seconds are allowed`);
    this.#rate = samplingRate;
    this.#window = new Float32Array(Math.max(1, Math.round(samplingRate * windowSeconds)));
  }

  /** Calls back for each chunk that `push` or `run` gets. */
  onAudioChunk(callback: (chunk: Float32Array) => unknown): void {
    this.#callbacks.push(callback);
  }

  /** Hands a chunk of samples to the callbacks. Without a callback, it is transcribed, window by window: it may have any length. */
  async push(chunk: Float32Array): Promise<void> {
    if (this.#callbacks.length === 0) await this.#inOrder(chunk);
    for (const callback of this.#callbacks) await callback(chunk);
  }

  /** Pushes all chunks of a source, and transcribes the rest. */
  async run(source: Iterable<Float32Array> | AsyncIterable<Float32Array>): Promise<StreamResult> {
    for await (const chunk of source) {
      await this.push(chunk);
      await this.#last;
    }
    return this.flush();
  }

  /**
   * Adds a chunk of samples. A full window is transcribed in the background; the result has what is finished. A chunk that would make too
   * many windows wait is refused as a whole.
   */
  processAudioWithTranscription(chunk: Float32Array): StreamResult {
    this.#add(chunk);
    return this.#take();
  }

  /** Transcribes the rest, and waits until everything is finished. */
  async flush(): Promise<StreamResult> {
    await this.#adding;
    this.#check();
    if (this.#waiting >= WAITING_MAX) await this.#last;
    if (this.#filled > 0) this.#transcribe();
    await this.#last;
    return this.#take();
  }

  /** Adds a chunk, or nothing of it. */
  #add(chunk: Float32Array): void {
    checkSamples(chunk);
    this.#check();
    const windows = Math.floor((this.#filled + chunk.length) / this.#window.length);
    if (windows > WAITING_MAX) {
      throw new CotensorError("Invalid", `audioChunk: ${chunk.length} samples; at most ${WAITING_MAX} windows of ${this.#window.length} are taken at once. Pass a part of them, or call push`);
    }
    if (this.#waiting + windows > WAITING_MAX) {
      throw new CotensorError("Refused", "audioChunk: the sound arrives faster than the models run; await `ready` of the last result, then pass this chunk again");
    }
    let rest = chunk;
    while (rest.length > 0) {
      const part = rest.subarray(0, this.#window.length - this.#filled);
      this.#window.set(part, this.#filled);
      this.#filled += part.length;
      rest = rest.subarray(part.length);
      if (this.#filled === this.#window.length) this.#transcribe();
    }
  }

  /** Adds a chunk after those that were pushed before it. */
  #inOrder(chunk: Float32Array): Promise<void> {
    const adding = this.#adding.then(() => this.#addAll(chunk));
    // An error is that of its own push.
    this.#adding = adding.catch(() => undefined);
    return adding;
  }

  /** Adds a chunk of any length, and waits for the models before the next window. */
  async #addAll(chunk: Float32Array): Promise<void> {
    checkSamples(chunk);
    let rest = chunk;
    do {
      const part = rest.subarray(0, this.#window.length - this.#filled);
      this.#add(part);
      rest = rest.subarray(part.length);
      await this.#last;
    } while (rest.length > 0);
  }

  /** The window becomes a part. The next one fills meanwhile. */
  #transcribe(): void {
    const samples = this.#window.slice(0, this.#filled);
    const [start, end] = [this.#passed / this.#rate, (this.#passed + this.#filled) / this.#rate];
    this.#passed += this.#filled;
    this.#filled = 0;
    this.#waiting += 1;
    this.#last = this.#last
      .then(() => this.#part(samples, start, end))
      .then((segment) => {
        this.#finished.push(segment);
        this.#text = [this.#text, segment.text].filter((text) => text !== "").join(" ");
        return [segment];
      })
      .finally(() => (this.#waiting -= 1));
    this.#last.catch((error: unknown) => (this.#error = error));
  }

  async #part(samples: Float32Array, start: number, end: number): Promise<StreamSegment> {
    const { audioModel, textModel, useSharedTensors = true } = this.options;
    for (const { model, result } of this.#made.splice(0)) releaseMade(model, result);
    const made = (model: FamilyModel, result: Result): Result => {
      if (!useSharedTensors) this.#made.push({ model, result });
      return result;
    };
    const { text } = made(audioModel, await audioModel.process({ audio: samples, samplingRate: this.#rate }));
    const result = textModel && text !== "" ? made(textModel, await textModel.process(text)) : undefined;
    return { start, end, text, result };
  }

  #take(): StreamResult {
    const segments = this.#finished;
    this.#finished = [];
    return { text: this.#text, segments, ready: this.#last };
  }

  /** An error of the background ends the stream. */
  #check(): void {
    if (this.#error !== undefined) throw this.#error;
  }
}

function checkSamples(chunk: Float32Array): void {
  if (!(chunk instanceof Float32Array)) throw new CotensorError("Invalid", "audioChunk: a Float32Array of samples is required");
}

/** Releases the tensors of a result, as far as the model still holds them. */
function releaseMade({ modelId }: FamilyModel, { output_tensors }: Result): void {
  for (const tensor of Object.values(output_tensors)) if (modelId in tensor.holders) tensor.release(modelId);
}

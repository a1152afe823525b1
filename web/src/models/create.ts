// Makes models and backends, under the names of docs/reference/api-names.md.
import { Backend, type BackendOptions } from "./backend.js";
import type { ModelOptions } from "./model.js";
import type { Device } from "../types.js";

/** Runs models: a `Backend` in this thread, a `SharedBackend` in the worker of all tabs. */
export interface Hardware<Model> {
  createModel(family: string | undefined, options: ModelOptions): Model;
}

/** A backend of this thread that prefers `device`. Without it, models run on the CPU; `skipped` has the reason. */
export async function createBackend(device: Device, options: BackendOptions = {}): Promise<Backend> {
  return Backend.create(device === "cpu" ? ["cpu"] : [device, "cpu"], options);
}

/** A backend that prefers WebGPU. */
export function createWebGPUBackend(options: BackendOptions = {}): Promise<Backend> {
  return createBackend("webgpu", options);
}

/** A backend that prefers WebNN. */
export function createWebNNBackend(options: BackendOptions = {}): Promise<Backend> {
  return createBackend("webnn", options);
}

/** A backend on the CPU. */
export function createCpuBackend(options: BackendOptions = {}): Promise<Backend> {
  return createBackend("cpu", options);
}

/** A model of any family. */
export function createModel<Model>(hardware: Hardware<Model>, options: ModelOptions): Model {
  return hardware.createModel(undefined, options);
}

type Create = <Model>(hardware: Hardware<Model>, options: ModelOptions) => Model;

const ofFamily =
  (family: string): Create =>
  (hardware, options) =>
    hardware.createModel(family, options);

/** A model of the family BERT. A model of another family is refused. */
export const createBertModel: Create = ofFamily("bert");
/** A model of the family ViT. */
export const createVitModel: Create = ofFamily("vit");
/** A model of the family CLIP. */
export const createClipModel: Create = ofFamily("clip");
/** A model of the family SigLIP. */
export const createSiglipModel: Create = ofFamily("siglip");
/** A model of the family Whisper. */
export const createWhisperModel: Create = ofFamily("whisper");
/** A model of the family CLAP. */
export const createClapModel: Create = ofFamily("clap");
/** A model of the family Wav2Vec2. */
export const createWav2Vec2Model: Create = ofFamily("wav2vec2");
/** A model of the family DETR: objects in images. */
export const createDetrModel: Create = ofFamily("detr");
/** A model of the family LLaMA, which GPT-2, Mistral and Qwen belong to: continuations of texts. */
export const createLlamaModel: Create = ofFamily("llama");
/** A model of the family T5: texts from texts. */
export const createT5Model: Create = ofFamily("t5");
/** A model of the family BART: texts from texts. */
export const createBartModel: Create = ofFamily("bart");
/** A model of the family BLIP: captions of images. */
export const createBlipModel: Create = ofFamily("blip");
/** A model of the family LLaVA: answers about images. */
export const createLlavaModel: Create = ofFamily("llava");

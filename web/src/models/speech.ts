// Whisper's tasks: the transcript of speech, and its language.
import type { Answer, Output } from "./answers.js";
import { runTask, type SpokenLanguage } from "./core.js";
import { Decoder } from "./decoder.js";
import { decode, tokensOutput } from "./generation.js";
import type { Run } from "./run.js";

/** Identifies the language, and writes the text. Equal sounds are transcribed once. */
export async function transcribe(run: Run): Promise<{ answer: Answer; outputs: Output[] }> {
  const { model, task } = run;
  const [[encoder = "encoder"], decoders] = model.rolesOf(task);
  const encoded = await run.result(encoder);
  const language = model.generation(task.name).hasLanguages ? await spokenLanguage(run, decoders) : undefined;
  const prompt = [...model.generation(task.name).speechPrompt(language?.token, "transcribe", false)];
  const tokens = await decode(run, decoders, prompt, [encoded]);
  return { answer: { type: "transcript", text: model.text.transcript(tokens).trim(), tokens: tokens.length }, outputs: [tokensOutput(tokens)] };
}

/** The language with the highest score after the start token. */
export async function identifyLanguage(run: Run): Promise<{ answer: Answer; outputs: Output[] }> {
  const [[encoder = "encoder"], decoders] = run.model.rolesOf(run.task);
  await run.result(encoder);
  const { language, probability, scores } = await spokenLanguage(run, decoders);
  return { answer: { type: "language", language, probability }, outputs: [{ name: "language_logits", shape: [scores.length], values: Float32Array.from(scores) }] };
}

async function spokenLanguage(run: Run, decoders: readonly string[]): Promise<SpokenLanguage> {
  const decoder = await Decoder.open(run, decoders);
  try {
    return await runTask<SpokenLanguage>(run.model.generation(run.task.name).spokenLanguage(decoder));
  } finally {
    decoder.dispose();
  }
}

// Whisper's tasks: the transcript of speech, and its language.
import type { Answer, Output } from "./answers.js";
import { runTask, takeArray, type SpeechWindows, type SpokenLanguage, type WrittenWindow } from "./core.js";
import { Decoder, nextTurn } from "./decoder.js";
import { decode, tokensOutput } from "./generation.js";
import type { Run } from "./run.js";

/** Identifies the language, and writes the text. Equal sounds are transcribed once. */
export async function transcribe(run: Run): Promise<{ answer: Answer; outputs: Output[] }> {
  const { model, task, inputs } = run;
  const [[encoder = "encoder"], decoders] = model.rolesOf(task);
  const windows = inputs.audio === undefined || run.isGiven(encoder) ? undefined : model.processors.speechWindows(inputs.audio, task.name, run.notices);
  if (windows) {
    try {
      return await transcribeWindows(run, windows);
    } finally {
      windows.free();
    }
  }
  const encoded = await run.result(encoder);
  const tokens = await decode(run, decoders, await promptOf(run, decoders, false), [encoded]);
  return { answer: { type: "transcript", text: model.text.transcript(tokens).trim(), tokens: tokens.length }, outputs: [tokensOutput(tokens)] };
}

/** The transcript of a sound that is longer than the model's window. The language is that of the first one. The results of one window at a time are held. */
async function transcribeWindows(run: Run, windows: SpeechWindows): Promise<{ answer: Answer; outputs: Output[] }> {
  const { model, task } = run;
  const [[encoder = "encoder"], decoders] = model.rolesOf(task);
  const all: number[] = [];
  let prompt: number[] | undefined;
  while (windows.scan()) {
    await nextTurn();
    run.call.signal?.throwIfAborted();
    model.check();
  }
  for (let features = windows.features(); features; features = windows.features()) {
    run.setValue("audio.features", takeArray(features));
    const encoded = await run.result(encoder);
    // A header may state more than the file has.
    const timestamps = !windows.isShort;
    prompt ??= await promptOf(run, decoders, timestamps);
    const written = await decode(run, decoders, prompt, [encoded], { timestamps, givesText: false });
    // The model may have been disposed meanwhile.
    model.check();
    const { tokens, pieces } = JSON.parse(windows.advance(Uint32Array.from(encoded.shape), written)) as WrittenWindow;
    for (const piece of pieces) run.give(piece);
    all.push(...tokens);
    run.release();
  }
  const rest = windows.rest();
  if (rest !== undefined) run.give(rest);
  const tokens = Uint32Array.from(all);
  return { answer: { type: "transcript", text: model.text.transcript(tokens).trim(), tokens: tokens.length }, outputs: [tokensOutput(tokens)] };
}

/** The language with the highest score after the start token. */
export async function identifyLanguage(run: Run): Promise<{ answer: Answer; outputs: Output[] }> {
  const [[encoder = "encoder"], decoders] = run.model.rolesOf(run.task);
  await run.result(encoder);
  const { language, probability, scores } = await spokenLanguage(run, decoders);
  return { answer: { type: "language", language, probability }, outputs: [{ name: "language_logits", shape: [scores.length], values: Float32Array.from(scores) }] };
}

/** The tokens before a transcript. The model may be disposed while the language is identified, so its parameters are not kept meanwhile. */
async function promptOf(run: Run, decoders: readonly string[], timestamps: boolean): Promise<number[]> {
  const { model, task } = run;
  const language = model.generation(task.name).hasLanguages ? await spokenLanguage(run, decoders) : undefined;
  return [...model.generation(task.name).speechPrompt(language?.token, "transcribe", timestamps)];
}

async function spokenLanguage(run: Run, decoders: readonly string[]): Promise<SpokenLanguage> {
  const decoder = await Decoder.open(run, decoders);
  try {
    return await runTask<SpokenLanguage>(run.model.generation(run.task.name).spokenLanguage(decoder));
  } finally {
    decoder.dispose();
  }
}

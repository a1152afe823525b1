// Tasks that a decoder answers: continuations, summaries, translations, captions of images, transcripts of speech and its language.
import { CotensorError } from "../errors.js";
import type { Answer, Output } from "./answers.js";
import { runTask, type DecodedAnswer } from "./core.js";
import type { Task } from "./definition.js";
import type { AnswerOptions } from "./model.js";
import type { Run } from "./run.js";
import { TaskHost } from "./task_host.js";

/** The role of the stage that reads a sound. */
const ENCODER = "encoder";

/** Runs the stages of the task. */
export async function write(run: Run): Promise<{ answer: Answer; outputs: Output[] }> {
  const { model, task, inputs: { text, audio }, options } = run;
  if (task.prompt && text === undefined) throw new CotensorError("Invalid", `text: ${task.name} of ${model.name} continues a text`);
  const isLong = task.answer === "transcript" && audio !== undefined && !run.isGiven(ENCODER);
  const windows = isLong ? model.processors.speechWindows(audio, task.name, run.notices) : undefined;
  const written = model.generation(task.name).answer(model.text, userOf(model.name, task, options), task.prompt || task.begins ? text : undefined, windows, new TaskHost(run));
  const [answer, outputs] = await runTask<DecodedAnswer>(written);
  // They are the results of the last window alone.
  if (windows) run.release();
  return { answer, outputs: outputs.map(({ values, ...output }) => ({ ...output, values: Float32Array.from(values) })) };
}

/** Options of the Rust library that pages do not read: texts are an input of `process`. */
const UNREAD = ["texts", "encoder"];

/**
 * The user that `ModelFamily.checkOptions` and `Generation.answer` read: JSON with the options that the program gave, which the module checks.
 * `texts` are those that are scored beside the text.
 */
export function userOf(model: string, task: Task, options: AnswerOptions, texts: readonly string[] = []): string {
  const unread = UNREAD.find((name) => (options as Readonly<Record<string, unknown>>)[name] !== undefined);
  if (unread !== undefined) throw new CotensorError("Invalid", `${unread}: pages do not read this option`);
  // JSON has no NaN and no infinity: they would become `null`. It has no BigInt.
  const inJson = (_: string, value: unknown): unknown => ((typeof value === "number" && !Number.isFinite(value)) || typeof value === "bigint" ? String(value) : value);
  return JSON.stringify({ ...options, name: model, model, task: task.name, ...(texts.length > 0 ? { texts } : {}) }, inJson);
}

// Scores of texts beside a text: by a cross-encoder, or by the logits of a causal language model after a prompt with both texts.
import { CotensorError } from "../errors.js";
import { hashes, NamedNumbers, type AnswerReader } from "./core.js";
import type { Answer, Output } from "./answers.js";
import { answered, type Run } from "./run.js";
import { lastRow } from "./decoder.js";
import { fixedLength, LOGITS, type StageDef } from "./definition.js";
import type { TextArrays } from "./processors.js";
import type { ModelStage } from "./stages.js";
import { identity } from "../stage/keys.js";

const LABEL = "logit of a pair";

/** Each pair runs by itself: equal pairs of other calls are computed once, and no pair is padded. */
export async function rerank(run: Run, head: string | undefined): Promise<{ answer: Answer; outputs: Output[] }> {
  const { model, task, inputs: { text: query, texts = [] } } = run;
  if (query === undefined) throw new CotensorError("Invalid", `text: ${task.name} of ${model.name} scores texts beside a text; give \`text\` and \`texts\``);
  const def = model.def(model.roles(task)[0] ?? "");
  const [stage, reader] = [await model.stage(def.role), await model.answers(task)];
  const numbers = { logits: new Float32Array(texts.length), tokens: new Float32Array(texts.length), truncated: new Float32Array(texts.length) };
  for (const [index, text] of texts.entries()) {
    await named(`texts[${index}]`, async () => {
      const pair = task.head ? model.processors.encodePair(query, text, fixedLength(def, stage.inputs)) : model.processors.encodePairPrompt(query, text);
      numbers.logits[index] = task.head ? await ofHead(run, reader, pair, head) : await ofLogits(run, def, stage, pair);
      numbers.tokens[index] = Number((pair.mask.data as BigInt64Array).reduce((sum, each) => sum + each, 0n));
      if (!pair.truncated) return;
      numbers.truncated[index] = 1;
      run.notices.push(`texts[${index}]: the pair was truncated to ${numbers.tokens[index]} tokens`);
    });
  }
  // The model may have been disposed while numbers were read.
  model.check();
  return answered(reader.scores([...texts], numbers.logits, numbers.tokens, numbers.truncated), run.notices);
}

/** The number that the head gives. */
async function ofHead(run: Run, reader: AnswerReader, pair: TextArrays, head: string | undefined): Promise<number> {
  const { name, shape, values } = await run.lastOutput(pair, head);
  // The model may have been disposed while numbers were read.
  run.model.check();
  const output = new NamedNumbers(name, Uint32Array.from(shape), values);
  try {
    return reader.pairLogit(run.task.name, output);
  } finally {
    output.free();
  }
}

/** The logit of the answer that the model begins after the prompt. */
async function ofLogits(run: Run, def: StageDef, stage: ModelStage, pair: TextArrays): Promise<number> {
  const { model } = run;
  if (!stage.outputs.some(({ name }) => name === LOGITS)) {
    throw new CotensorError("Unsupported", `${model.name}: ${def.role} gives ${stage.outputs.map(({ name }) => name).join(", ")}, and no ${LOGITS}`);
  }
  const extra = [identity(hashes, pair.ids), model.processors.pairs.fingerprint];
  const [logit] = await run.once([def.role], LABEL, extra, async () => {
    const inputs = await run.inputsOf(def, stage, pair);
    const [logits] = await stage.runAlone(inputs, [LOGITS], run.holder);
    if (!logits) throw new CotensorError("Engine", `${model.name}: ${def.role} gave no ${LOGITS}`);
    try {
      const row = await lastRow(run, logits);
      return Float32Array.of(model.processors.pairs.logit(row));
    } finally {
      logits.dispose();
    }
  });
  return logit as number;
}

/** Adds the text to an error. */
async function named(text: string, work: () => Promise<void>): Promise<void> {
  try {
    await work();
  } catch (error) {
    throw error instanceof CotensorError ? new CotensorError(error.kind, `${text}: ${error.message}`) : error;
  }
}

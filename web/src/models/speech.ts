// Whisper's task: the transcript of speech.
import { identity } from "../stage/keys.js";
import { argmax, type Answer, type Output } from "./answers.js";
import { hashes, type DecodingRequest, type Generation } from "./core.js";
import { Decoder } from "./decoder.js";
import type { Run } from "./run.js";

/** Identifies the language, and writes the text. Equal sounds are transcribed once. */
export async function transcribe(run: Run, maxNewTokens: number | undefined): Promise<{ answer: Answer; outputs: Output[] }> {
  const { model, task } = run;
  const [encoder = "encoder", ...decoders] = model.roles(task);
  const encoded = await run.result(encoder);
  const generation = model.generation(task.name);
  const language = await spokenLanguage(run, generation, decoders);
  const prompt = [...generation.speechPrompt(language, "transcribe", false)];
  const request: DecodingRequest = { user: model.name, ...(maxNewTokens === undefined ? {} : { max_new_tokens: maxNewTokens }) };
  const decoding = generation.decode(Uint32Array.from(prompt), JSON.stringify(request), false);
  try {
    for (const each of generation.unapplied()) run.notices.push(`not applied: ${each}`);
    const tokens = await run.once(decoders, task.name, [identity(hashes, encoded), decoding.settingsHash(), tokensHash(prompt)], async () => {
      const decoder = await Decoder.open(run, decoders);
      try {
        for (let read = prompt; ; ) {
          const next = decoding.next(await decoder.read(read));
          if (next === undefined || decoding.isDone) return decoding.tokens();
          read = [next];
        }
      } finally {
        decoder.dispose();
      }
    });
    const text = model.text.transcript(tokens).trim();
    const values = Float32Array.from(tokens);
    return { answer: { type: "transcript", text, tokens: tokens.length }, outputs: [{ name: "tokens", shape: [values.length], values }] };
  } finally {
    decoding.free();
  }
}

/** The token of the language with the highest score after the start token; nothing for a model of one language. */
async function spokenLanguage(run: Run, generation: Generation, roles: readonly string[]): Promise<number | undefined> {
  const languages = JSON.parse(generation.languages()) as [name: string, token: number][];
  if (languages.length === 0) return undefined;
  const decoder = await Decoder.open(run, roles);
  try {
    const scores = generation.languageScores(await decoder.read([generation.start()]));
    return languages[argmax(scores)]?.[1];
  } finally {
    decoder.dispose();
  }
}

function tokensHash(tokens: readonly number[]): string {
  return identity(hashes, { data: Uint32Array.from(tokens), shape: [tokens.length] });
}

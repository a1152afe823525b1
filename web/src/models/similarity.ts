// The scale and the bias that turn cosine similarities into logits. Both are trained, so they come from the model's files.
import { CotensorError } from "../errors.js";
import { CheckpointHeader, scaleBeforeTraining, type ModelFamily } from "./core.js";
import type { FamilyDescription } from "./definition.js";
import type { ModelFolder } from "./folder.js";
import { readOnce } from "./imported.js";

/** `logit = cosine * scale + bias`. `AnswerReader.setScale` reads it as JSON. */
export interface LogitScale extends Trained {
  /** The file that has the numbers. */
  readonly source: string;
  /** Whether the scale is the one before training. */
  readonly untrained: boolean;
}

interface Trained {
  readonly scale: number;
  readonly bias: number;
}

const CHECKPOINT = "model.safetensors";

/** Scale and bias of a model: from a graph that computes logits, else from the checkpoint, else the value before training. */
export async function logitScale(
  definition: ModelFamily,
  { name, similarity }: FamilyDescription,
  wholeGraph: () => Promise<string | null>,
  folder: ModelFolder,
): Promise<LogitScale> {
  if (!similarity) throw new CotensorError("Unsupported", `${folder.modelId}: models of the family ${name} compare nothing`);
  const whole = await wholeGraph();
  const computed = whole === null ? undefined : await ofGraph(folder, whole, similarity.logits);
  if (whole !== null && computed) return { ...computed, source: whole, untrained: false };
  const trained = await ofCheckpoint(folder, similarity.scale, similarity.bias);
  if (trained) return { ...trained, source: CHECKPOINT, untrained: false };
  const scale = scaleBeforeTraining(definition);
  if (scale === undefined) {
    throw new CotensorError("NotFound", `${folder.modelId}: ${similarity.scale}: the scale of similarities is in no graph and not in ${CHECKPOINT}`);
  }
  return { scale, bias: 0, source: "config.json", untrained: true };
}

/** The numbers in a graph that computes logits. They are stored: the file has all weights of the model. */
async function ofGraph(folder: ModelFolder, file: string, logits: string): Promise<Trained | undefined> {
  const [scale, bias] = await readOnce(folder, file, "scale", logits, (graph) => Promise.resolve([...(graph.scaleAndBias(logits) ?? [])]));
  return scale === undefined || bias === undefined ? undefined : { scale, bias };
}

/** The numbers in a checkpoint, of which only the header and the numbers are fetched. */
async function ofCheckpoint(folder: ModelFolder, scaleName: string, biasName: string | null): Promise<Trained | undefined> {
  if (!(await folder.has(CHECKPOINT))) return undefined;
  const length = CheckpointHeader.length(await folder.range(CHECKPOINT, 0, 8));
  const header = new CheckpointHeader(await folder.range(CHECKPOINT, 8, length));
  try {
    const number = async (name: string): Promise<number | undefined> => {
      const [offset, bytes] = header.range(name) ?? [];
      return offset === undefined || bytes === undefined ? undefined : header.number(name, await folder.range(CHECKPOINT, offset, bytes));
    };
    const scale = await number(scaleName);
    const bias = biasName === null ? 0 : await number(biasName);
    return scale === undefined || bias === undefined ? undefined : { scale: Math.exp(scale), bias };
  } finally {
    header.free();
  }
}

// Loads a model of a pool whose files have weights of few bits.
import { CotensorError } from "../errors.js";
import type { Device } from "../types.js";
import type { CallOptions } from "./model.js";
import type { ResourcePoolBridgeIntegration } from "./pool.js";
import { BITS, type HardwarePreferences, type QuantizationReport } from "./precision.js";

/** What {@link setupUltraLowPrecision} is asked for. */
export interface UltraLowPrecisionOptions {
  readonly modelName: string;
  readonly modelType: string;
  /** Bits of a weight; 2 by default. */
  readonly precisionBits?: number;
  /** Whether each matrix has a width of its own; it has by default. */
  readonly mixedPrecision?: boolean;
  /** Changes nothing: engines always keep the keys and values of a decoder. `notices` says so. */
  readonly enableKvCache?: boolean;
  /** Changes nothing: the positions of a model set the length of its context. `notices` says so. */
  readonly extendedContext?: boolean;
  /** The devices, the best first. */
  readonly priorityList?: readonly Device[];
}

/** A model that is ready with weights of few bits. */
export interface UltraLowPrecisionConfig {
  readonly modelName: string;
  readonly modelType: string;
  readonly precisionBits: number;
  readonly mixedPrecision: boolean;
  /** Bits of a weight with scales; nothing for files of other programs. */
  readonly bitsPerWeight: number | undefined;
  /** The error of the outputs of each graph, as the report has it. */
  readonly outputErrors: Readonly<Record<string, number | null>>;
  /** What was asked for and is not so. */
  readonly notices: readonly string[];
  /** For `getModel` of the pool. */
  readonly hardwarePreferences: HardwarePreferences;
}

/**
 * Loads a model whose files have weights of few bits, so that `getModel` with the same preferences has it at once. Fails with the kind
 * `Unsupported` if the files have no such weights: `cotensor quantize` writes them.
 */
export async function setupUltraLowPrecision(
  pool: ResourcePoolBridgeIntegration,
  options: UltraLowPrecisionOptions,
  { signal }: CallOptions = {},
): Promise<UltraLowPrecisionConfig> {
  const { modelName, modelType, precisionBits = 2, mixedPrecision = true, priorityList } = options;
  if (!BITS.includes(precisionBits)) throw new CotensorError("Unsupported", `precisionBits: ${precisionBits}; ${BITS.join(", ")} are possible`);
  const hardwarePreferences = { precision: precisionBits, mixedPrecision, ...(priorityList ? { priorityList } : {}) };
  const { quantization } = await pool.getModel(modelType, modelName, hardwarePreferences, signal ? { signal } : {});
  const graphs = quantization?.graphs ?? [];
  const notices: string[] = [];
  if (options.enableKvCache) notices.push("the cache of keys and values has the type of the graph: it is not quantized");
  if (options.extendedContext) notices.push("the context stays as long as the positions of the model allow: fewer bits leave memory, not positions");
  return {
    modelName,
    modelType,
    precisionBits,
    mixedPrecision,
    bitsPerWeight: bitsPerWeight(graphs),
    outputErrors: Object.fromEntries(graphs.map(({ file, output_error: error }) => [file, error === null ? null : Number(error)])),
    notices,
    hardwarePreferences,
  };
}

function bitsPerWeight(graphs: QuantizationReport["graphs"]): number | undefined {
  const matrices = graphs.flatMap((graph) => graph.matrices);
  const sum = (of: (matrix: (typeof matrices)[number]) => number): number => matrices.reduce((all, matrix) => all + of(matrix), 0);
  const elements = sum(({ rows, columns }) => rows * columns);
  return elements ? sum(({ rows, columns, bits_per_weight }) => rows * columns * bits_per_weight) / elements : undefined;
}

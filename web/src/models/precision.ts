// Weights of few bits: which graphs of a model a precision means. A page does not quantize: it opens what `cotensor quantize` wrote.
import { CotensorError } from "../errors.js";
import type { Device } from "../types.js";
import type { CallOptions } from "./model.js";
import type { HardwarePreferences, ResourcePoolBridgeIntegration } from "./pool.js";

/** The file of a model's folder with what `cotensor quantize` reported. */
export const REPORT_FILE = "quantization.json";

/** The bits of a weight that Cotensor writes. onnxruntime-web has no products of 3 bits. */
const BITS: readonly number[] = [2, 3, 4, 8];

/** How the weights of a model were quantized: the parts of the report of `cotensor quantize --json` that pages read. */
export interface QuantizationReport {
  readonly graphs: readonly {
    readonly file: string;
    /** Whether onnxruntime has all its operators. */
    readonly opens_in_onnxruntime: boolean;
    /** The relative error of the outputs on samples that were held out; null without samples. */
    readonly output_error: number | null;
    readonly matrices: readonly { readonly bits: number; readonly rows: number; readonly columns: number; readonly bits_per_weight: number }[];
  }[];
  /** How widths were chosen; null for one width. */
  readonly mixed: { readonly is_mixed: boolean } | null;
}

/** Reads the report of a model's folder; nothing without one. */
export type ReadReport = () => Promise<string | undefined>;

/** The graphs of a precision: a variant of files, and the report if Cotensor wrote them. */
export interface Chosen {
  readonly variant?: string;
  readonly quantization?: QuantizationReport;
}

/** The graphs that preferences mean. */
export async function chooseGraphs(modelName: string, { precision, mixedPrecision = false }: HardwarePreferences, read: ReadReport): Promise<Chosen> {
  if (precision === undefined) {
    if (mixedPrecision) throw new CotensorError("Invalid", "mixedPrecision: needs the precision: 2, 3, 4 or 8 bits");
    return {};
  }
  const bits = Number(precision);
  if (!BITS.includes(bits)) {
    if (mixedPrecision) throw new CotensorError("Unsupported", `mixedPrecision: widths are mixed for a precision of ${BITS.join(", ")} bits, not ${precision}`);
    return { variant: String(precision) };
  }
  const quantization = parsed(modelName, await read());
  if (quantization && fits(quantization, bits, mixedPrecision)) {
    const refused = quantization.graphs.find((graph) => !graph.opens_in_onnxruntime);
    if (!refused) return { quantization };
    throw new CotensorError("Unsupported", `precision: ${modelName}: ${refused.file} has products of 3 bits, for which onnxruntime-web has no operator`);
  }
  // Files of other programs have 4 and 8 bits.
  if (!mixedPrecision && (bits === 4 || bits === 8)) return { variant: String(bits) };
  const wanted = `weights of ${bits} bits${mixedPrecision ? " with mixed widths" : ""}`;
  const command = `cotensor quantize MODEL --bits ${bits}${mixedPrecision ? " --mixed --calibrate FILE" : ""} -o FOLDER`;
  throw new CotensorError("Unsupported", `precision: the files of ${modelName} have no ${wanted}, and a page does not quantize: serve the folder that \`${command}\` writes`);
}

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
    outputErrors: Object.fromEntries(graphs.map((graph) => [graph.file, graph.output_error])),
    notices,
    hardwarePreferences,
  };
}

function parsed(modelName: string, text: string | undefined): QuantizationReport | undefined {
  if (text === undefined) return undefined;
  try {
    const report = JSON.parse(text) as QuantizationReport;
    // Reads every part once: a damaged file fails here.
    if (report.graphs.every(({ file, matrices }) => typeof file === "string" && Array.isArray(matrices))) return report;
  } catch {
    // The same error follows.
  }
  throw new CotensorError("Corrupt", `${modelName}: ${REPORT_FILE} is no report of cotensor quantize`);
}

function fits({ graphs, mixed }: QuantizationReport, bits: number, mixedPrecision: boolean): boolean {
  const widths = graphs.flatMap(({ matrices }) => matrices.map((matrix) => matrix.bits));
  // Where one width had no larger error, `--mixed` wrote it.
  return mixedPrecision ? mixed !== null && widths.length > 0 : widths.length > 0 && widths.every((width) => width === bits);
}

function bitsPerWeight(graphs: QuantizationReport["graphs"]): number | undefined {
  const matrices = graphs.flatMap((graph) => graph.matrices);
  const sum = (of: (matrix: (typeof matrices)[number]) => number): number => matrices.reduce((all, matrix) => all + of(matrix), 0);
  const elements = sum(({ rows, columns }) => rows * columns);
  return elements ? sum(({ rows, columns, bits_per_weight }) => rows * columns * bits_per_weight) / elements : undefined;
}

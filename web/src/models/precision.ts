// Weights of few bits: which graphs of a model a precision means. A page does not quantize: it opens what `cotensor quantize` wrote.
import { CotensorError } from "../errors.js";
import type { Device } from "../types.js";

/** The file of a model's folder with what `cotensor quantize` reported. */
export const REPORT_FILE = "quantization.json";

/** The bits of a weight that Cotensor writes. onnxruntime-web has no products of 3 bits. */
export const BITS: readonly number[] = [2, 3, 4, 8];

/** How the weights of a model were quantized: the parts of the report of `cotensor quantize --json` that pages read. */
export interface QuantizationReport {
  readonly graphs: readonly {
    readonly file: string;
    /** Whether onnxruntime has all its operators. */
    readonly opens_in_onnxruntime: boolean;
    /** The relative error of the outputs on samples that were held out; null without samples, a text such as `NaN` if it is not finite. */
    readonly output_error: number | string | null;
    readonly matrices: readonly { readonly bits: number; readonly rows: number; readonly columns: number; readonly bits_per_weight: number }[];
  }[];
  /** How widths were chosen; null for one width. */
  readonly mixed: {
    readonly is_mixed: boolean;
    /** The most bits for a weight that were asked for, with scales. */
    readonly target_bits: number;
  } | null;
}

/** Reads the report of a model's folder; nothing without one. */
export type ReadReport = () => Promise<string | undefined>;

/** Which devices and files a model of the pool uses. */
export interface HardwarePreferences {
  /** The devices, the best first; by default WebGPU, then the CPU. Without `cpu`, there is no fallback. */
  readonly priorityList?: readonly Device[];
  /** Which files: `fp32`, `fp16`, `int8`, `q4`, …, or their number of bits; 2, 4 and 8 bits also of a folder that `cotensor quantize` wrote. */
  readonly precision?: string | number;
  /** Whether each matrix has a width of its own, as `cotensor quantize --mixed` writes it. */
  readonly mixedPrecision?: boolean;
}

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

function parsed(modelName: string, text: string | undefined): QuantizationReport | undefined {
  if (text === undefined) return undefined;
  try {
    const report = JSON.parse(text) as QuantizationReport;
    // Reads every part once: a damaged file fails here.
    const isMatrix = ({ bits, rows, columns, bits_per_weight }: QuantizationReport["graphs"][number]["matrices"][number]): boolean =>
      [bits, rows, columns].every((number) => Number.isSafeInteger(number) && number > 0) && Number.isSafeInteger(rows * columns) && Number.isFinite(bits_per_weight);
    if (report.graphs.every(({ file, matrices }) => typeof file === "string" && Array.isArray(matrices) && matrices.every(isMatrix))) return report;
  } catch {
    // The same error follows.
  }
  throw new CotensorError("Corrupt", `${modelName}: ${REPORT_FILE} is not a report of cotensor quantize`);
}

function fits({ graphs, mixed }: QuantizationReport, bits: number, mixedPrecision: boolean): boolean {
  const widths = graphs.flatMap(({ matrices }) => matrices.map((matrix) => matrix.bits));
  if (widths.length === 0) return false;
  if (!mixedPrecision) return widths.every((width) => width === bits);
  // Where one width had no larger error, `--mixed` wrote it. Scales have less than one bit for a weight.
  return mixed !== null && mixed.target_bits >= bits && mixed.target_bits < bits + 1;
}

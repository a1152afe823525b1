// Reads the fields of a request.
import { CotensorError } from "../errors.js";

type Params = Readonly<Record<string, unknown>>;

/** A text that is required. */
export function text(params: Params, field: string): string {
  const value = params[field];
  if (typeof value === "string") return value;
  throw new CotensorError("Invalid", `${field}: a text is required`);
}

/** A text, or nothing. */
export function optionalText(params: Params, field: string): string | undefined {
  return params[field] === undefined ? undefined : text(params, field);
}

/** A number that is required. */
export function number(params: Params, field: string): number {
  const value = params[field];
  if (typeof value === "number") return value;
  throw new CotensorError("Invalid", `${field}: a number is required`);
}

/** Numbers that are required. */
export function numbers(params: Params, field: string): number[] {
  const value = params[field];
  if (Array.isArray(value) && value.every((each) => typeof each === "number")) return value;
  throw new CotensorError("Invalid", `${field}: an array of numbers is required`);
}

/** A buffer that is required. */
export function buffer(params: Params, field: string): ArrayBuffer {
  const value = params[field];
  if (value instanceof ArrayBuffer) return value;
  throw new CotensorError("Invalid", `${field}: an ArrayBuffer is required`);
}

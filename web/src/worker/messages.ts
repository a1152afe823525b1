// The messages between a page and the worker. They are objects for `postMessage`, so that buffers are transferred.
import { CotensorError, type ErrorKind } from "../errors.js";

/** A call. */
export interface Request {
  readonly id: number;
  readonly method: string;
  readonly params: unknown;
}

/** The answer to the call with that number. */
export type Answer = { readonly id: number; readonly result: unknown } | { readonly id: number; readonly error: WireError };

/** A message without an answer. */
export interface Notification {
  readonly method: string;
  readonly params: unknown;
}

/** An error of a call. */
export interface WireError {
  readonly kind: ErrorKind;
  readonly message: string;
}

/** The most calls of one client without an answer. */
export const OUTSTANDING_MAX = 1024;
/** The most bytes of one message, texts and arrays together. A tensor of the store has at most 4 GiB. */
const MESSAGE_BYTES_MAX = 4 * 2 ** 30;
/** The most values in one message. The numbers of a typed array are one value. */
const MESSAGE_VALUES_MAX = 1_000_000;

/** Checks the size of a message before it is sent. */
export function checkSize(method: string, params: unknown): void {
  let [bytes, values] = [0, 0];
  const rest: unknown[] = [params];
  for (let value = rest.pop(); value !== undefined || rest.length > 0; value = rest.pop()) {
    values += 1;
    if (typeof value === "string") bytes += 2 * value.length;
    else if (ArrayBuffer.isView(value) || value instanceof ArrayBuffer) bytes += value.byteLength;
    else if (typeof value === "object" && value !== null) for (const each of Object.values(value)) rest.push(each);
    if (bytes > MESSAGE_BYTES_MAX) {
      throw new CotensorError("Refused", `${method}: a message has at most ${MESSAGE_BYTES_MAX} bytes; send the data in parts`);
    }
    if (values + rest.length > MESSAGE_VALUES_MAX) {
      throw new CotensorError("Refused", `${method}: a message has at most ${MESSAGE_VALUES_MAX} values; send typed arrays`);
    }
  }
}

const KINDS: ReadonlySet<string> = new Set<ErrorKind>([
  ...(["Invalid", "Corrupt", "NotFound", "Conflict", "OverBudget", "Refused"] as const),
  ...(["Unsupported", "Io", "Engine", "TimedOut", "Unreachable"] as const),
]);

/** The error in a form that `postMessage` keeps: classes do not survive it. */
export function toWire(error: unknown): WireError {
  const { kind, message } = (typeof error === "object" && error !== null ? error : {}) as { kind?: unknown; message?: unknown };
  const text = typeof message === "string" ? message : String(error);
  return typeof kind === "string" && KINDS.has(kind) ? { kind: kind as ErrorKind, message: text } : { kind: "Engine", message: String(error) };
}

/** The error of an answer. */
export function fromWire({ kind, message }: WireError): CotensorError {
  return new CotensorError(kind, message);
}

/** A result whose buffers move to the receiver without a copy. The sender cannot use them afterwards. */
export class Transfer {
  constructor(
    readonly value: unknown,
    readonly objects: Transferable[],
  ) {}
}

/** The kinds of errors, as in Cotensor's other languages. They are stable between versions. */
export type ErrorKind =
  | "Invalid"
  | "Corrupt"
  | "NotFound"
  | "Conflict"
  | "OverBudget"
  | "Refused"
  | "Unsupported"
  | "Io"
  | "Engine"
  | "TimedOut"
  | "Unreachable";

/** The class of all errors. Match on `kind`; the text may change. */
export class CotensorError extends Error {
  override readonly name = "CotensorError";

  constructor(
    readonly kind: ErrorKind,
    message: string,
  ) {
    super(message);
  }
}

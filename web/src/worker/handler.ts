// A method of the worker.
import type { Store } from "../store.js";
import type { Session } from "./session.js";

/** What the methods use. */
export interface HubContent {
  readonly store: Store;
  /** The onnxruntime-web that the program gave to `serve`. */
  readonly ort: unknown;
}

/** One call: the worker's content, and the client. */
export interface CallContext extends HubContent {
  readonly session: Session;
  /** Sends the client a message without an answer. It arrives before the answer of the call. */
  readonly notify: (method: string, params: unknown) => void;
}

/**
 * A method. It checks its parameters, which come from a page. It may return a `Transfer`. Objects that live longer than the call
 * are given to `context.session.own`, so that they end with the client.
 */
export type Handler = (params: Record<string, unknown>, context: CallContext) => unknown;

/** Methods by name. */
export type Handlers = Readonly<Record<string, Handler>>;

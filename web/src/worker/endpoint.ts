import { CotensorError } from "../errors.js";
import { checkSize, fromWire, OUTSTANDING_MAX, toWire, Transfer, type Answer, type Notification, type Request } from "./messages.js";

/** What an endpoint does with the other side's messages. */
export interface Receiver {
  /** The result of a call, which may be a `Transfer`. */
  request(method: string, params: unknown): unknown;
  notification(method: string, params: unknown): void;
}

interface Pending {
  readonly resolve: (result: unknown) => void;
  readonly reject: (error: CotensorError) => void;
}

/** One end of a `MessagePort`: calls with answers, and notifications. The messages of one side arrive in order. */
export class Endpoint {
  readonly #port: MessagePort;
  readonly #pending = new Map<number, Pending>();
  #next = 1;
  /** Calls of the other side that run. */
  #running = 0;
  #closed: CotensorError | undefined;

  constructor(port: MessagePort, receiver: Receiver) {
    this.#port = port;
    port.onmessage = (event: MessageEvent<unknown>) => this.#receive(event.data, receiver);
    port.onmessageerror = () => this.close(new CotensorError("Corrupt", "a message could not be read"));
    port.start();
  }

  get isClosed(): boolean {
    return this.#closed !== undefined;
  }

  /** The number of calls that wait for answers. */
  get outstanding(): number {
    return this.#pending.size;
  }

  /** Calls a method of the other side. The objects in `transfer` move there without a copy. */
  call(method: string, params: unknown, transfer: Transferable[] = []): Promise<unknown> {
    return new Promise((resolve, reject) => {
      if (this.#closed) throw this.#closed;
      if (this.#pending.size >= OUTSTANDING_MAX) {
        throw new CotensorError("Refused", `${method}: ${OUTSTANDING_MAX} calls wait for answers; await some of them first`);
      }
      const id = this.#next;
      this.#send(method, { id, method, params }, transfer);
      this.#next += 1;
      this.#pending.set(id, { resolve, reject });
    });
  }

  /** Sends a message without an answer. Nothing happens once the endpoint is closed. */
  notify(method: string, params: unknown): void {
    if (!this.#closed) this.#send(method, { method, params }, []);
  }

  /** Closes the port; calls without an answer fail with `reason`. A second call does nothing. */
  close(reason: CotensorError): void {
    if (this.#closed) return;
    this.#closed = reason;
    this.#port.onmessage = null;
    this.#port.close();
    for (const { reject } of this.#pending.values()) reject(reason);
    this.#pending.clear();
  }

  #send(method: string, message: Request | Notification, transfer: Transferable[]): void {
    checkSize(method, message.params);
    try {
      this.#port.postMessage(message, transfer);
    } catch (error) {
      // A function, or a buffer that was transferred before.
      throw new CotensorError("Invalid", `${method}: the parameters cannot be sent to another thread: ${String(error)}`);
    }
  }

  #receive(message: unknown, receiver: Receiver): void {
    const { id, method, params, ...answer } = (message ?? {}) as Partial<Request> & { error?: unknown; result?: unknown };
    if (typeof method === "string" && typeof id === "number") void this.#run(id, method, params, receiver);
    else if (typeof method === "string") receiver.notification(method, params);
    else if (typeof id === "number") this.#settle({ id, ...answer } as Answer);
  }

  async #run(id: number, method: string, params: unknown, receiver: Receiver): Promise<void> {
    this.#running += 1;
    try {
      if (this.#running > OUTSTANDING_MAX) {
        throw new CotensorError("Refused", `${method}: ${OUTSTANDING_MAX} calls of this client run already`);
      }
      const result = await receiver.request(method, params);
      const { value, objects } = result instanceof Transfer ? result : new Transfer(result, []);
      checkSize(method, value);
      if (!this.#closed) this.#port.postMessage({ id, result: value } satisfies Answer, objects);
    } catch (error) {
      if (!this.#closed) this.#port.postMessage({ id, error: toWire(error) } satisfies Answer);
    } finally {
      this.#running -= 1;
    }
  }

  #settle(answer: Answer): void {
    const pending = this.#pending.get(answer.id);
    this.#pending.delete(answer.id);
    if ("error" in answer) pending?.reject(fromWire(answer.error));
    else pending?.resolve(answer.result);
  }
}

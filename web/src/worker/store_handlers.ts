import { checkReason } from "../reports.js";
import type { TensorOptions } from "../store.js";
import { Tensor } from "../tensor.js";
import type { Device, DType, Kind } from "../types.js";
import type { CallContext, Handlers } from "./handler.js";
import { Transfer } from "./messages.js";
import { buffer, number, numbers, optionalText, text } from "./fields.js";

/** A lease of the client, and its tensor. */
export interface TensorAnswer {
  readonly handle: number;
  readonly name: string;
  readonly version: number;
  readonly dtype: DType;
  readonly shape: readonly number[];
  readonly kind: Kind;
  readonly device: Device;
  readonly producer: string;
  readonly metadata: unknown;
  readonly holder: string;
}

/** Gives a lease to the client, and describes it. Methods of models return their tensors so. */
export function tensorAnswer({ session }: Pick<CallContext, "session">, tensor: Tensor): TensorAnswer {
  const handle = session.own(tensor);
  const { name, version, dtype, shape, kind, device, producer, metadata, holder } = tensor;
  return { handle, name, version, dtype, shape, kind, device, producer, metadata, holder };
}

/** The methods of the store. */
export const storeHandlers: Handlers = {
  "tensor.put": (params, context) => {
    const { store, session } = context;
    const [name, bytes] = [text(params, "name"), new Uint8Array(buffer(params, "bytes"))];
    // The store checks the fields.
    const given = (params["options"] ?? {}) as TensorOptions & { dtype: DType; shape: readonly number[] };
    const options = { ...given, holder: session.holderName(optionalText(params, "holder")) };
    if ((options.device ?? "cpu") !== "cpu") return tensorAnswer(context, store.put(name, bytes, options));
    // The message brought the bytes into this thread: the store takes them as they are.
    const tensor = store.adopt(name, bytes, options);
    if (params["copied"] === true) store.countCopy(name, bytes.byteLength);
    return tensorAnswer(context, tensor);
  },

  "tensor.get": (params, context) => {
    const version = params["version"] === undefined ? undefined : number(params, "version");
    const holder = context.session.holderName(optionalText(params, "holder"));
    return tensorAnswer(context, context.store.get(text(params, "name"), holder, version));
  },

  "tensor.view": (params, context) => {
    const tensor = context.session.find(params["handle"], Tensor);
    const step = params["step"] === undefined ? undefined : numbers(params, "step");
    return tensorAnswer(context, tensor.view(numbers(params, "offset"), numbers(params, "size"), step));
  },

  "tensor.leaseFor": (params, context) => {
    const tensor = context.session.find(params["handle"], Tensor);
    return tensorAnswer(context, tensor.leaseFor(context.session.holderName(text(params, "holder"))));
  },

  "tensor.read": async (params, { session }) => {
    const reason = text(params, "reason");
    checkReason(reason);
    const array = await session.find(params["handle"], Tensor).read(reason);
    return new Transfer(array, [array.buffer]);
  },

  "tensor.holders": (params, { session }) => session.find(params["handle"], Tensor).holders,
  "store.has": (params, { store }) => store.has(text(params, "name")),
  "store.names": (params, { store }) => store.names(text(params, "prefix")),
  "store.remove": (params, { store }) => store.remove(text(params, "name")),
  "store.stats": (_params, { store }) => store.getStats(),
  "store.diagnostics": (_params, { store }) => store.getDiagnostics(),
  "store.recommendations": (_params, { store }) => store.getOptimizationRecommendations(),
  "store.optimize": (_params, { store }) => store.optimizeMemoryUsage(),
  "store.limitMemory": (params, { store }) => store.limitMemory(text(params, "device") as Device, number(params, "maxBytes")),
};

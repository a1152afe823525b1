// The methods of models: they run in the hub, and their tensors stay there.
import { Backend } from "../models/backend.js";
import type { Inputs } from "../models/inputs.js";
import { LocalModel } from "../models/local_model.js";
import type { ModelOptions } from "../models/model.js";
import type { ModelSources } from "../models/folder.js";
import type { Result } from "../models/result.js";
import type { Ort } from "../engine/ort.js";
import { CotensorError } from "../errors.js";
import { SharedTensor } from "../shared_tensor.js";
import type { Store } from "../store.js";
import { Tensor } from "../tensor.js";
import type { Device, Kind } from "../types.js";
import type { CallContext, Handlers, HubContent } from "./handler.js";
import { number, optionalText, text } from "./fields.js";
import type { Session } from "./session.js";
import { tensorAnswer, type TensorAnswer } from "./store_handlers.js";

/** What `model.create` answers. */
export interface ModelAnswer {
  readonly handle: number;
  readonly device: Device;
  readonly skipped: Readonly<Record<string, string>>;
}

/** A result whose tensors are leases of the client. */
export type ResultAnswer = Pick<Result, "task" | "answer" | "outputs" | "stages" | "notices"> & {
  readonly tensors: Readonly<Partial<Record<Kind, TensorAnswer>>>;
};

/** The backends of each hub's store, by devices and sources of models. */
const backends = new WeakMap<Store, Map<string, Promise<Backend>>>();

function backendOf({ store, ort }: HubContent, devices: readonly Device[], sources: ModelSources): Promise<Backend> {
  const known = backends.get(store) ?? new Map<string, Promise<Backend>>();
  backends.set(store, known);
  const key = JSON.stringify([devices, sources]);
  const options = { ...sources, store, ...(ort === undefined ? {} : { ort: ort as Ort }) };
  const backend = known.get(key) ?? Backend.create(devices, options);
  known.set(key, backend);
  backend.catch(() => known.delete(key));
  return backend;
}

const model = (params: Record<string, unknown>, { session }: { session: Session }): LocalModel => session.find(params["handle"], LocalModel);

/** Leases the tensors of a result to the client. */
function answer(context: CallContext, result: Result): ResultAnswer {
  const { answer: given, outputs, stages, notices, task } = result;
  const tensors: Partial<Record<Kind, TensorAnswer>> = {};
  for (const [kind, tensor] of Object.entries(result.output_tensors)) {
    tensors[kind as Kind] = tensorAnswer(context, tensor.lease().sameFor(context.session.holder));
  }
  return { task, answer: given, outputs, stages, notices, tensors };
}

/** The methods of models. */
export const modelHandlers: Handlers = {
  "model.create": async (params, context): Promise<ModelAnswer> => {
    const { devices, sources, options } = params as { devices?: unknown; sources?: ModelSources; options?: ModelOptions };
    if (!Array.isArray(devices)) throw new CotensorError("Invalid", "devices: a list of devices is required");
    if (typeof options?.modelId !== "string") throw new CotensorError("Invalid", "modelId: a text is required");
    const backend = await backendOf(context, devices as Device[], sources ?? {});
    // The page's name of a model whose path it made absolute.
    const name = optionalText(params, "name") ?? options.modelId;
    const made = new LocalModel(backend, options, optionalText(params, "family"), context.session.holderName(name));
    return { handle: context.session.own(made), device: backend.device, skipped: backend.skipped };
  },

  "model.initialize": async (params, context) => {
    const made = model(params, context);
    await made.initialize();
    return { family: made.family, tasks: made.tasks };
  },

  "model.tokenize": (params, context) => model(params, context).tokenize(text(params, "text")),

  "model.process": async (params, context) => {
    const made = model(params, context);
    const handles = Array.isArray(params["tensors"]) ? (params["tensors"] as unknown[]) : [];
    // The leases that the run reads end with it.
    const tensors = handles.map((handle) => new SharedTensor(context.store, context.session.find(handle, Tensor).sameFor(context.session.holder)));
    try {
      const inputs = (params["inputs"] ?? {}) as Inputs;
      const { call } = params;
      const onText = (piece: string): void => context.notify("text", { call, piece });
      return await context.session.cancellable(call, (signal) =>
        made.run(inputs, tensors, { signal, ...(params["text"] === true ? { onText } : {}) }, (result) => answer(context, result)),
      );
    } finally {
      for (const tensor of tensors) tensor.release(context.session.holder);
    }
  },

  "model.release": async (params, { session }) => {
    const handle = number(params, "handle");
    await session.find(handle, LocalModel).dispose();
    session.release(handle);
  },
};

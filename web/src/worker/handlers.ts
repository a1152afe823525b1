// The methods of the worker: one table. To add a method, add a line here, or pass `handlers` to `serve`.
import type { Handlers } from "./handler.js";
import { modelHandlers } from "./model_handlers.js";
import { storeHandlers } from "./store_handlers.js";

export const HANDLERS: Handlers = { ...storeHandlers, ...modelHandlers };

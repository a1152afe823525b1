import { RealmLocks, siteLocks, type Locks } from "../locks.js";
import { Store } from "../store.js";
import type { Handlers, HubContent } from "./handler.js";
import { Hub } from "./hub.js";
import { scopeName, scopeOf } from "./names.js";

/** Options of `serve`. */
export interface ServeOptions {
  /** The onnxruntime-web that models run on, or a function that imports it. Workers have no import maps: the worker's file names it. */
  readonly ort?: unknown;
  /** Makes the store. Without it, a store of host memory. */
  readonly store?: () => Promise<Store>;
  /** More methods. */
  readonly handlers?: Handlers;
  readonly locks?: Locks;
}

/** Locks of this thread, for hubs in a page without the site's locks. */
export const threadLocks = new RealmLocks();

interface WorkerScope {
  name?: string;
  onconnect?: ((event: MessageEvent) => void) | null;
  onmessage?: ((event: MessageEvent) => void) | null;
  close?: () => void;
}

/**
 * Makes this thread the hub of all tabs of the site. The file of a shared or dedicated worker calls it once, at its start: clients
 * that connect earlier are not noticed. In another thread, such as a page, the caller passes ports to `accept`.
 */
export function serve(options: ServeOptions = {}): Hub {
  const scope = globalThis as WorkerScope;
  const isShared = "SharedWorkerGlobalScope" in globalThis;
  const isDedicated = "DedicatedWorkerGlobalScope" in globalThis;
  let made: Promise<HubContent> | undefined;
  // After a failed attempt, the next client's call tries again.
  const content = (): Promise<HubContent> => {
    made ??= make(options).then(watched, (error: unknown) => {
      made = undefined;
      throw error;
    });
    return made;
  };
  // onnxruntime-web runs on one device of a thread for good: clients that connect again start another worker.
  const watched = (all: HubContent): HubContent => {
    for (const device of all.store.devices) {
      void all.store.memory(device).lost?.then((reason) => {
        hub.end(`the device ${device} of the worker was lost (${reason})`);
        all.store.dispose();
        if (isShared || isDedicated) scope.close?.();
      });
    }
    return all;
  };
  const hub = new Hub({
    name: ((isShared || isDedicated) && scopeOf(scope.name ?? "")) || scopeName("page"),
    content,
    handlers: options.handlers ?? {},
    locks: options.locks ?? siteLocks() ?? (isShared || isDedicated ? undefined : threadLocks),
  });
  const accept = ({ ports: [port] }: MessageEvent): void => {
    if (port) hub.accept(port);
  };
  if (isShared) scope.onconnect = accept;
  if (isDedicated) scope.onmessage = accept;
  return hub;
}

async function make({ ort, store = () => Store.create() }: ServeOptions): Promise<HubContent> {
  const given = (await (typeof ort === "function" ? (ort as () => unknown)() : ort)) as unknown;
  return { ort: given, store: await store() };
}

import { absoluteUrl, addressOf } from "../addresses.js";
import { CotensorError } from "../errors.js";
import { siteLocks, type Locks } from "../locks.js";
import { Connection, StartError, type Link, type Mode } from "./connection.js";
import { randomId, type Hub } from "./hub.js";
import { scopeName } from "./names.js";
import { serveWith, workerName, type WorkerSettings } from "./settings.js";
import { threadLocks } from "./serve.js";
import { SharedStore } from "./shared_store.js";

/** Options of a connection. Pages share a hub if `hub`, `worker` and the settings are equal. */
export interface ConnectOptions extends WorkerSettings {
  /** The name of the hub; a site may have several. 1 to 100 of the characters a-z, A-Z, 0-9, _, - and . */
  readonly hub?: string;
  /** The name of this client's leases; by default `tab` and a random number. */
  readonly holder?: string;
  /** The program's own worker file, which calls `serve`. Settings are not passed to it. */
  readonly worker?: string | URL;
  /** Makes the hub in this page when no worker can be started; needed with `worker` only. */
  readonly page?: () => Hub | Promise<Hub>;
  /** The only way to connect; without it, each is tried in the order shared, dedicated, page. */
  readonly mode?: Mode;
  /** Milliseconds that a worker may take to start; 20,000 by default. */
  readonly startTimeout?: number;
  /** Those of the site by default. */
  readonly locks?: Locks;
}

const START_TIMEOUT = 20_000;
const MODES: readonly Mode[] = ["shared", "dedicated", "page"];

/** The workers of this page alone, by name and URL. */
const pageWorkers = new Map<string, { worker: Worker; clients: number }>();
/** The hubs that run in this page, by name. */
const pageHubs = new Map<string, Promise<Hub>>();

/**
 * Connects to the hub of all tabs of the site, and starts its worker if there is none. Without shared workers, the hub is in a
 * worker of this page, or in the page itself: `mode` and `fallbackReasons` of the result say so.
 */
export async function connectShared(options: ConnectOptions = {}): Promise<SharedStore> {
  const { hub = "default", holder = `tab ${randomId().slice(0, 6)}`, startTimeout = START_TIMEOUT } = options;
  if (!/^[\w.-]{1,100}$/.test(hub)) {
    throw new CotensorError("Invalid", `hub ${JSON.stringify(hub)}: 1 to 100 of the characters a-z, A-Z, 0-9, _, - and . are required`);
  }
  const modes = options.mode ? [options.mode] : MODES;
  const reasons: string[] = [];
  for (const mode of modes) {
    const site = options.locks ?? siteLocks();
    const locks = mode === "page" ? (site ?? threadLocks) : site;
    try {
      const link = await LINKS[mode](scopeName(hub), options);
      const connection = await Connection.open(link, { scope: scopeName(hub), holder, locks, startTimeout });
      return new SharedStore(connection, reasons);
    } catch (error) {
      // The worker runs and refuses: it would refuse in another mode too.
      if (!(error instanceof StartError)) throw error;
      reasons.push(`${mode}: ${error.message}`);
    }
  }
  throw new CotensorError("Unreachable", `no hub can be started. ${reasons.join(". ")}`);
}

const LINKS: Record<Mode, (scope: string, options: ConnectOptions) => Promise<Link>> = {
  shared: async (name, options) => {
    if (typeof SharedWorker === "undefined") throw new StartError("Unreachable", "the browser has no shared workers");
    if (!(options.locks ?? siteLocks())) {
      const reason = "there are no Web Locks here, without which no worker learns that a tab ended; browsers have them in secure contexts";
      throw new StartError("Unreachable", reason);
    }
    const [url, named] = [workerUrl(options), nameOf(name, options)];
    // Bundlers know the file by the second form alone.
    const worker = started(() =>
      url ? new SharedWorker(url, { type: "module", name: named }) : new SharedWorker(new URL("./main.js", import.meta.url), { type: "module", name: named }),
    );
    return { mode: "shared", port: worker.port, failed: failure(worker), terminate: () => undefined };
  },

  dedicated: async (name, options) => {
    if (typeof Worker === "undefined") throw new StartError("Unreachable", "the browser has no workers");
    const [url, named] = [workerUrl(options), nameOf(name, options)];
    const key = `${named} ${url?.href ?? ""}`;
    const start = (): Worker =>
      url ? new Worker(url, { type: "module", name: named }) : new Worker(new URL("./main.js", import.meta.url), { type: "module", name: named });
    const running = pageWorkers.get(key) ?? { worker: started(start), clients: 0 };
    pageWorkers.set(key, running);
    running.clients += 1;
    const terminate = (): void => {
      running.clients -= 1;
      if (running.clients > 0) return;
      if (pageWorkers.get(key) === running) pageWorkers.delete(key);
      running.worker.terminate();
    };
    const { port1, port2 } = new MessageChannel();
    running.worker.postMessage({}, [port2]);
    // A worker that ended answers no client: the next client starts another one.
    const failed = failure(running.worker);
    failed.catch(() => pageWorkers.delete(key));
    return { mode: "dedicated", port: port1, failed, terminate };
  },

  page: async (name, options) => {
    const make = options.page ?? (options.worker === undefined ? () => pageHub(options) : undefined);
    if (!make) throw new StartError("Unreachable", "the option `page` is required to run a program's own hub in the page");
    const hub = pageHubs.get(name) ?? keptHub(name, Promise.resolve(make()));
    const { port1, port2 } = new MessageChannel();
    (await hub).accept(port2);
    return { mode: "page", port: port1, failed: new Promise(() => undefined), terminate: () => undefined };
  },
};

/** Keeps a hub until it ended, or could not be made. */
function keptHub(name: string, hub: Promise<Hub>): Promise<Hub> {
  pageHubs.set(name, hub);
  const forget = (): unknown => pageHubs.get(name) === hub && pageHubs.delete(name);
  hub.then((made) => made.ended).then(forget, forget);
  return hub;
}

async function pageHub({ ort, ...settings }: WorkerSettings): Promise<Hub> {
  return serveWith({ ...settings, ...(ort === undefined ? {} : { ort: absoluteUrl("ort", ort) }) });
}

/** The address of the worker's file, if the program named it. */
function workerUrl({ worker }: ConnectOptions): URL | undefined {
  return worker === undefined ? addressOf("worker") : absoluteUrl("worker", worker);
}

/** The program's own worker reads no settings. */
function nameOf(scope: string, options: ConnectOptions): string {
  return options.worker === undefined ? workerName(scope, options) : scope;
}

/** The browser refuses some workers at once, such as those of another site. */
function started<Kind>(start: () => Kind): Kind {
  try {
    return start();
  } catch (error) {
    throw new StartError("Unreachable", String(error));
  }
}

/** Rejects when the worker's file cannot be loaded. */
function failure(worker: SharedWorker | Worker): Promise<never> {
  const failed = new Promise<never>((_resolve, reject) => {
    worker.addEventListener("error", (event) => {
      const message = (event as ErrorEvent).message ?? "its file or an import of it cannot be loaded";
      reject(new StartError("Unreachable", message));
    });
  });
  // A rejection that no caller awaits is not an error.
  failed.catch(() => undefined);
  return failed;
}

// What Node has in place of a browser. Bundlers for browsers leave its modules out: their names are variables.

interface NodeProcess {
  readonly versions?: { readonly node?: string };
  cwd(): string;
}
const nodeProcess = (globalThis as { process?: NodeProcess }).process;

/** Whether this thread is one of Node, without a document of its own. */
export const isNode = typeof nodeProcess?.versions?.node === "string" && !("document" in globalThis) && !("WorkerGlobalScope" in globalThis);

/** A module that bundlers leave out. */
export function importUnbundled(name: string): Promise<unknown> {
  return import(/* webpackIgnore: true */ /* @vite-ignore */ name);
}

/** What relative addresses are relative to: the page, or the folder in which Node runs. */
export function baseAddress(): string | undefined {
  if (!isNode) return (globalThis.location as Location | undefined)?.href;
  const folder = new URL("file:///");
  folder.pathname = `${(nodeProcess as NodeProcess).cwd().replaceAll("%", "%25")}/`;
  return folder.href;
}

interface NodeFiles {
  readonly promises: {
    readFile(url: URL): Promise<Uint8Array<ArrayBuffer>>;
    stat(url: URL): Promise<{ readonly size: number; readonly mtimeMs: number; isFile(): boolean }>;
  };
  openAsBlob(url: URL): Promise<Blob>;
}

const nodeFiles = (): Promise<NodeFiles> => importUnbundled("node:fs") as Promise<NodeFiles>;

/** The bytes of a file. */
export async function readFile(url: URL): Promise<Uint8Array<ArrayBuffer>> {
  return (await nodeFiles()).promises.readFile(url);
}

/** The answer of a server that has the file: Node's `fetch` reads no files. */
export async function fileAnswer(address: string, { method = "GET", headers }: RequestInit): Promise<Response> {
  const [{ promises, openAsBlob }, url] = [await nodeFiles(), new URL(address)];
  const file = await promises.stat(url).catch(() => undefined);
  if (!file?.isFile()) return new Response(null, { status: 404 });
  const about = { etag: `"${file.size}-${file.mtimeMs}"`, "content-length": String(file.size) };
  if (method === "HEAD") return new Response(null, { headers: about });
  const blob = await openAsBlob(url);
  const [, from, to] = /^bytes=(\d+)-(\d*)$/.exec(new Headers(headers).get("range") ?? "") ?? [];
  if (from === undefined) return new Response(blob, { headers: about });
  const end = Math.min(to ? Number(to) + 1 : file.size, file.size);
  const part = blob.slice(Number(from), end);
  const range = { "content-range": `bytes ${from}-${end - 1}/${file.size}`, "content-length": String(part.size) };
  return new Response(part, { status: 206, headers: { ...about, ...range } });
}

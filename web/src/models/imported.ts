// Imported graphs: graphs without weights and the weights by their hash, in the cache of the site. A graph is imported once; later visits,
// other tabs and other models with the same weights neither download nor parse nor hash it again.
import type { GraphFiles } from "../engine/session.js";
import { CotensorError } from "../errors.js";
import { MissingBlob, type PutBlob, type WeightCache } from "../weights/cache.js";
import type { BlobRef } from "../weights/manifest.js";
import { openGraph, type GraphFile, type StageGraph, type StageGraphDescription } from "./core.js";
import { beside, type ModelFolder, type Progress } from "./folder.js";

/** Weights of this many bytes and more have a blob of their own, so that models share them. The smaller ones of a graph have one together. */
const OWN_BLOB_BYTES = 1 << 16;
/** The beginning of a weight in a blob of several. */
const ALIGNMENT = 64;
const FORMAT = 3;

/** A graph in the cache. */
export interface ImportedGraph {
  readonly description: StageGraphDescription;
  readonly graph: BlobRef;
  /** The files with weights that the graph names, each by its hash. */
  readonly weights: readonly BlobRef[];
}

/** The graphs of a file's parts: of a stage in their order, and of what follows it. They are freed after the import. */
export interface Parts<Graph = StageGraph> {
  readonly stage: readonly Graph[];
  readonly rest: readonly Graph[];
}

/** What the cache has of a file. */
interface ImportDocument<Value> {
  /** The files beside the graph, with their versions. */
  readonly external: Readonly<Record<string, string | undefined>>;
  /** What was made of it. */
  readonly graphs: Value;
}

/** The graphs of `file`, imported under `key`. */
export function importGraphs(folder: ModelFolder, file: string, key: string, parts: (file: GraphFile) => Parts, progress?: Progress): Promise<Parts<ImportedGraph>> {
  const read = async (graph: GraphFile, put: PutBlob): Promise<Parts<ImportedGraph>> => {
    const { stage, rest } = parts(graph);
    try {
      return { stage: await storeAll(stage, put), rest: await storeAll(rest, put) };
    } finally {
      for (const part of [...stage, ...rest]) part.free();
    }
  };
  return readOnce(folder, file, `graph ${FORMAT}`, key, read, progress);
}

/**
 * What `read` makes of a graph's file: a value of JSON, which is stored, and names the blobs that `read` put. A file that changed on the
 * server is read again.
 */
export function readOnce<Value>(
  folder: ModelFolder,
  file: string,
  form: string,
  key: string,
  read: (graph: GraphFile, put: PutBlob) => Promise<Value>,
  progress?: Progress,
): Promise<Value> {
  const { cache } = folder;
  return folder.keeping(async (keep) => {
    const versionOf = (each: string): Promise<string | undefined> => {
      keep(each);
      return folder.version(each, progress);
    };
    const version = await versionOf(file);
    if (version === undefined) throw new CotensorError("NotFound", `${folder.modelId}: it has no file ${file}`);
    const build = async (put: PutBlob): Promise<ImportDocument<Value>> => {
      const external: Record<string, string | undefined> = {};
      const graphFile = await openGraph(file, await folder.bytes(file, progress), async (location) => {
        external[location] = await versionOf(beside(file, location));
        return folder.bytes(beside(file, location), progress);
      });
      try {
        return { external, graphs: await read(graphFile, put) };
      } finally {
        graphFile.free();
      }
    };
    const name = `${form} ${new URL(file, folder.url).href} ${version} ${key}`;
    const document = (await cache.once(name, build, true)).document as ImportDocument<Value>;
    const isSame = async ([location, known]: [string, string | undefined]): Promise<boolean> => (await versionOf(beside(file, location))) === known;
    const same = await Promise.all(Object.entries(document.external).map(isSame));
    if (same.every(Boolean)) return document.graphs;
    await cache.remove(name);
    return ((await cache.once(name, build, true)).document as ImportDocument<Value>).graphs;
  });
}

async function storeAll(parts: readonly StageGraph[], put: PutBlob): Promise<ImportedGraph[]> {
  const graphs: ImportedGraph[] = [];
  for (const part of parts) graphs.push(await store(part, put));
  return graphs;
}

/** The files of an imported graph, for an engine. */
export async function filesOf(cache: WeightCache, { graph, weights }: ImportedGraph): Promise<GraphFiles> {
  const data = async (blob: BlobRef): Promise<Blob> => {
    const found = await cache.blob(blob);
    if (!found) throw new MissingBlob("NotFound", `weights ${blob.hash}: the browser removed them from its private files; load the model again`);
    return found;
  };
  const externalData = await Promise.all(weights.map(async (blob) => ({ path: blob.hash, data: await data(blob) })));
  return { graph: await cache.bytes(graph), externalData };
}

/** Stores the weights, then the graph that names them. */
async function store(part: StageGraph, put: PutBlob): Promise<ImportedGraph> {
  const description = JSON.parse(part.describe()) as StageGraphDescription;
  const own = new Map<number, BlobRef>();
  const offsets = new Float64Array(description.weights.length);
  const small: { offset: number; bytes: Uint8Array }[] = [];
  let end = 0;
  for (const [index, weight] of description.weights.entries()) {
    const bytes = part.weight(index) as Uint8Array<ArrayBuffer>;
    if (weight.bytes >= OWN_BLOB_BYTES) {
      own.set(index, await put(bytes));
    } else {
      offsets[index] = end;
      small.push({ offset: end, bytes });
      end = Math.ceil((end + bytes.byteLength) / ALIGNMENT) * ALIGNMENT;
    }
  }
  const together = new Uint8Array(end);
  for (const { offset, bytes } of small) together.set(bytes, offset);
  const rest = end > 0 ? await put(together) : undefined;
  const locations = description.weights.map((_, index) => (own.get(index) ?? rest)?.hash ?? "");
  const graph = await put(part.encode(locations, offsets) as Uint8Array<ArrayBuffer>);
  const weights = new Map([...own.values(), ...(rest ? [rest] : [])].map((blob) => [blob.hash, blob]));
  return { description, graph, weights: [...weights.values()] };
}

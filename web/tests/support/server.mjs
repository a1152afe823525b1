// A web server for tests in browsers, on 127.0.0.1: browsers offer WebGPU, WebNN and hashes to pages of that address.
import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { gunzipSync } from "node:zlib";

const TYPES = { js: "text/javascript", mjs: "text/javascript", wasm: "application/wasm", json: "application/json" };
const IMPORTS = { cotensor: "/index.js", "onnxruntime-web/webgpu": "/ort/ort.webgpu.bundle.min.mjs", "onnxruntime-web/wasm": "/ort/ort.wasm.bundle.min.mjs", "onnxruntime-common": "/ort-common/index.js" };
const PAGE = `<!doctype html><meta charset="utf-8"><script type="importmap">${JSON.stringify({ imports: IMPORTS })}</script>`;

/** The folders behind the first part of a path. The package itself is at the root. */
const FOLDERS = {
  ort: new URL("../../node_modules/onnxruntime-web/dist/", import.meta.url),
  "ort-common": new URL("../../node_modules/onnxruntime-common/dist/esm/", import.meta.url),
  transformers: new URL("../../../target/transformers-js/package/dist/", import.meta.url),
  fixtures: new URL("../../../fixtures/", import.meta.url),
  unpacked: new URL("../../../fixtures/", import.meta.url),
  support: new URL("./", import.meta.url),
};
const PACKAGE = new URL("../../dist/", import.meta.url);

/** The small models that stand for those of the project's documents, below `/models/`. */
const MODELS = {
  "google/vit-base-patch16-224": "tiny/vit",
  "openai/clip-vit-base-patch16": "tiny/clip",
  "bert-base-uncased": "tiny/bert",
  "openai/whisper-tiny": "tiny/whisper",
  "bert-4bit": "low-bit/bert",
};

/** The file of a path; nothing for a page. */
function fileOf(path, folders) {
  const model = Object.keys(MODELS).find((name) => path.startsWith(`/models/${name}/`));
  if (model) return fileOf(`/fixtures/${MODELS[model]}${path.slice(`/models/${model}`.length)}`, folders);
  const [, first, ...rest] = path.split("/");
  const folder = Object.hasOwn(folders, first) ? folders[first] : undefined;
  const file = folder ? new URL(rest.join("/"), folder) : new URL(path.slice(1), PACKAGE);
  // `new URL` resolves dots: a file outside its folder is not served.
  return file.href.startsWith((folder ?? PACKAGE).href) && /\.\w+$/.test(path) && !path.endsWith(".html") ? file : undefined;
}

/** A file's content. Below `/unpacked/`, it may be compressed, and the tiny BERT's tokenizer is in place of a missing one. */
async function contentOf(path, file) {
  try {
    return await readFile(file);
  } catch (error) {
    if (!path.startsWith("/unpacked/")) throw error;
    if (/\/tokenizer(_config)?\.json$/.test(path)) return readFile(new URL(`tiny/bert/${path.split("/").at(-1)}`, FOLDERS.fixtures));
    return gunzipSync(await readFile(new URL(`${file.href}.gz`)));
  }
}

async function answer(request, response, headers, folders, log) {
  for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
  const path = decodeURIComponent(new URL(request.url, "http://localhost").pathname);
  const file = fileOf(path, folders);
  const entry = { method: request.method, path, bytes: 0 };
  log.push(entry);
  if (!file) return response.setHeader("content-type", "text/html").end(PAGE);
  try {
    const type = TYPES[path.slice(path.lastIndexOf(".") + 1)] ?? "application/octet-stream";
    const body = await contentOf(path, file);
    const etag = `"${createHash("sha1").update(body).digest("hex")}"`;
    response.setHeader("content-type", type).setHeader("etag", etag).setHeader("content-length", body.length);
    if (request.method === "HEAD") return response.end();
    const [, start, end] = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? "") ?? [];
    const part = end === undefined ? body : body.subarray(Number(start), Number(end) + 1);
    if (end !== undefined) response.writeHead(206, { "content-length": part.length, "content-range": `bytes ${start}-${end}/${body.length}` });
    entry.bytes = part.length;
    return response.end(part);
  } catch {
    return response.writeHead(404).end();
  }
}

/**
 * Starts a server of the package, of onnxruntime-web (`/ort/`), of transformers.js (`/transformers/`), of the fixtures (`/fixtures/`, whole models below
 * `/unpacked/`) and of this folder (`/support/`), and of small models under their names in the documents (`/models/`); every other path is an empty page. `headers`
 * are sent with each answer, `folders` are added, `requests` has the method, the path and the bytes of the body of each. `close` ends it.
 */
export async function serve({ headers = {}, folders = {} } = {}) {
  const requests = [];
  const server = createServer((request, response) => void answer(request, response, headers, { ...FOLDERS, ...folders }, requests));
  // By default Node closes a connection after five idle seconds, perhaps while a client in the same busy process sends its next request.
  server.keepAliveTimeout = 0;
  await new Promise((resolve, reject) => server.once("error", reject).listen(0, "127.0.0.1", resolve));
  return {
    requests,
    url: `http://127.0.0.1:${server.address().port}/`,
    close: () => {
      server.closeAllConnections();
      server.close();
    },
  };
}

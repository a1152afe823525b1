// `node demo/serve.mjs [--port PORT] [--models DIR]`: serves the demo page, the package, onnxruntime-web and model folders on 127.0.0.1.
import { readdir, readFile, stat } from "node:fs/promises";
import { createServer } from "node:http";
import { join, relative, resolve, sep } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const { values } = parseArgs({ options: { port: { type: "string", default: "8537" }, models: { type: "string" } } });
const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const models = values.models === undefined ? here("../../fixtures/tiny") : resolve(values.models);
const FOLDERS = { demo: here("./"), dist: here("../dist"), ort: here("../node_modules/onnxruntime-web/dist"), models };
const TYPES = { html: "text/html; charset=utf-8", css: "text/css", js: "text/javascript", mjs: "text/javascript", wasm: "application/wasm", json: "application/json", png: "image/png" };
/** Isolated pages may use threads and measure their memory. */
const HEADERS = { "cross-origin-opener-policy": "same-origin", "cross-origin-embedder-policy": "require-corp" };
/** Families whose models read an image with one encoder. */
const IMAGE_MODELS = ["vit", "deit", "dinov2", "clip", "siglip"];
const DEPTH_MAX = 3;

/** The model folders below `models` that read images, by their paths. */
async function modelNames(folder = models, depth = 0) {
  const entries = await readdir(folder, { withFileTypes: true });
  if (entries.some(({ name }) => name === "config.json")) {
    const { model_type: type } = JSON.parse(await readFile(join(folder, "config.json"), "utf8"));
    return IMAGE_MODELS.includes(type) ? [relative(models, folder).split(sep).join("/")] : [];
  }
  if (depth === DEPTH_MAX) return [];
  const nested = entries.filter((entry) => entry.isDirectory()).map(({ name }) => modelNames(join(folder, name), depth + 1));
  return (await Promise.all(nested)).flat().sort();
}

/** The file of a path; nothing outside of the folders. */
function fileOf(path) {
  if (path === "/") return here("index.html");
  if (path === "/photo.png") return here("../../fixtures/media/photo.png");
  const [, first, ...rest] = path.split("/");
  const folder = Object.hasOwn(FOLDERS, first) ? FOLDERS[first] : undefined;
  const file = folder && resolve(folder, rest.join("/"));
  return file?.startsWith(folder.endsWith(sep) ? folder : folder + sep) ? file : undefined;
}

async function answer({ method, url, headers }, response) {
  for (const [name, value] of Object.entries(HEADERS)) response.setHeader(name, value);
  const path = decodeURIComponent(new URL(url, "http://localhost").pathname);
  if (path === "/models.json") return response.setHeader("content-type", TYPES.json).end(JSON.stringify(await modelNames()));
  const file = fileOf(path);
  const found = file && (await stat(file).catch(() => undefined));
  if (!found?.isFile()) return response.writeHead(404, { "content-type": "text/plain" }).end(`${path}: no such file\n`);
  const etag = `"${found.size}-${found.mtimeMs}"`;
  response.setHeader("content-type", TYPES[path.split(".").at(-1)] ?? (path === "/" ? TYPES.html : "application/octet-stream"));
  response.setHeader("etag", etag).setHeader("cache-control", "no-cache");
  if (headers["if-none-match"] === etag) return response.writeHead(304).end();
  response.setHeader("content-length", found.size);
  return method === "HEAD" ? response.end() : response.end(await readFile(file));
}

const server = createServer((request, response) => {
  answer(request, response).catch((error) => response.headersSent || response.writeHead(500).end(`${error.message}\n`));
});
server.on("error", (error) => {
  console.error(error.code === "EADDRINUSE" ? `port ${values.port} is in use; choose another one with PORT=…` : error.message);
  process.exit(1);
});
server.listen(Number(values.port), "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}/`));
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => server.close(() => process.exit(0)) && server.closeAllConnections());

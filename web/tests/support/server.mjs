// A web server for tests in browsers, on 127.0.0.1: browsers offer WebGPU, WebNN and hashes to pages of that address.
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";

const TYPES = { js: "text/javascript", mjs: "text/javascript", wasm: "application/wasm", json: "application/json" };
const PAGE = `<!doctype html><meta charset="utf-8"><script type="importmap">{"imports": {"cotensor": "/index.js"}}</script>`;

/** The folders behind the first part of a path. The package itself is at the root. */
const FOLDERS = {
  ort: new URL("../../node_modules/onnxruntime-web/dist/", import.meta.url),
  fixtures: new URL("../../../fixtures/", import.meta.url),
  support: new URL("./", import.meta.url),
};
const PACKAGE = new URL("../../dist/", import.meta.url);

/** The file of a path; nothing for a page. */
function fileOf(path) {
  const [, first, ...rest] = path.split("/");
  const folder = Object.hasOwn(FOLDERS, first) ? FOLDERS[first] : undefined;
  const file = folder ? new URL(rest.join("/"), folder) : new URL(path.slice(1), PACKAGE);
  // `new URL` resolves dots: a file outside its folder is not served.
  return file.href.startsWith((folder ?? PACKAGE).href) && /\.\w+$/.test(path) && !path.endsWith(".html") ? file : undefined;
}

async function answer(request, response, headers) {
  for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
  const path = decodeURIComponent(new URL(request.url, "http://localhost").pathname);
  const file = fileOf(path);
  if (!file) return response.setHeader("content-type", "text/html").end(PAGE);
  try {
    const type = TYPES[path.slice(path.lastIndexOf(".") + 1)] ?? "application/octet-stream";
    return response.setHeader("content-type", type).end(await readFile(file));
  } catch {
    return response.writeHead(404).end();
  }
}

/**
 * Starts a server of the package, of onnxruntime-web (`/ort/`), of the fixtures (`/fixtures/`) and of this folder
 * (`/support/`); every other path is an empty page. `headers` are sent with each answer. `close` ends it.
 */
export async function serve({ headers = {} } = {}) {
  const server = createServer((request, response) => void answer(request, response, headers));
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${server.address().port}/`,
    close: () => {
      server.closeAllConnections();
      server.close();
    },
  };
}

// A server of folders, for pages that a bundler built.
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";

const TYPES = { html: "text/html", js: "text/javascript", mjs: "text/javascript", wasm: "application/wasm", json: "application/json" };

/** Serves each folder below its path, such as `{ "/": page, "/models/": models }`. `requests` has the paths. */
export async function serveFolders(folders) {
  const requests = [];
  // The longest path that fits.
  const paths = Object.keys(folders).sort((a, b) => b.length - a.length);
  const server = createServer(async ({ url, method }, response) => {
    const path = decodeURIComponent(new URL(url, "http://localhost").pathname);
    requests.push(path);
    const name = path.endsWith("/") ? `${path}index.html` : path;
    const base = paths.find((each) => name.startsWith(each));
    try {
      const file = new URL(name.slice(base.length), folders[base]);
      if (!file.href.startsWith(folders[base].href)) throw new Error("outside");
      const body = await readFile(file);
      response.setHeader("content-type", TYPES[name.split(".").at(-1)] ?? "application/octet-stream").setHeader("content-length", body.length);
      response.setHeader("etag", `"${body.length}"`).end(method === "HEAD" ? undefined : body);
    } catch {
      response.writeHead(404).end();
    }
  });
  // By default Node closes a connection after five idle seconds, perhaps while a client in the same busy process sends its next request.
  server.keepAliveTimeout = 0;
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const close = () => (server.closeAllConnections(), server.close());
  return { url: `http://127.0.0.1:${server.address().port}/`, requests, close };
}

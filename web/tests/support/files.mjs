// Files that a test server serves with the errors of real servers.
import { createHash } from "node:crypto";
import { createServer } from "node:http";
import { gzipSync } from "node:zlib";

/** A hasher with the interface of the BLAKE3 one. The tests of the cache need any hash of 64 digits. */
export function newHasher() {
  const hash = createHash("sha256");
  return { update: (bytes) => void hash.update(bytes), digest: () => hash.digest("hex") };
}

export const sha256 = (bytes) => createHash("sha256").update(bytes).digest("hex");

/** Bytes that are the same in each run. */
export function bytesOf(length, seed = 1) {
  return Uint8Array.from({ length }, (_, index) => (index * 31 + seed * 17 + (index >> 8)) % 256);
}

/**
 * A server of `files`: name to `{ body, etag, modified, type, breakAt, stallAt, chunked, ranges, status, headStatus, silent }`. It counts requests and the bytes of bodies
 * that it sends. `breakAt` cuts the connection of an answer after so many bytes; an answer with `stallAt` does not end, a `silent` one does not begin; a `chunked` one has no length; a `gzipped` one is compressed, but not its parts.
 */
export async function serveFiles(files) {
  const log = [];
  const sent = { bytes: 0 };
  const server = createServer((request, response) => {
    const file = files[request.url.slice(1)];
    log.push(`${request.method} ${request.url}${request.headers.range ? ` ${request.headers.range}` : ""}`);
    response.setHeader("access-control-allow-origin", "*");
    response.setHeader("access-control-expose-headers", "etag, content-range");
    if (file?.silent) return undefined;
    if (request.method === "HEAD" && file?.headStatus) return response.writeHead(file.headStatus).end();
    if (!file || file.status) return response.writeHead(file?.status ?? 404).end();
    response.setHeader("content-type", file.type ?? "application/octet-stream");
    if (file.etag) response.setHeader("etag", file.etag);
    if (file.modified) response.setHeader("last-modified", file.modified);
    const [, from, to] = (file.ranges !== false && /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "")) || [];
    const body = Buffer.from(file.body.subarray(Number(from ?? 0), to ? Number(to) + 1 : undefined));
    if (from) response.statusCode = 206;
    if (from) response.setHeader("content-range", `bytes ${from}-${file.body.length - 1}/${file.body.length}`);
    if (file.gzipped && !from) {
      const packed = gzipSync(body);
      response.setHeader("content-encoding", "gzip").setHeader("content-length", packed.length);
      return response.end(request.method === "HEAD" ? undefined : packed);
    }
    if (!file.chunked) response.setHeader("content-length", body.length);
    if (request.method === "HEAD") return response.end();
    if (file.breakAt && !from) {
      sent.bytes += file.breakAt;
      return response.write(body.subarray(0, file.breakAt), () => response.socket.end());
    }
    // A part that is sent whole ends: the next request may come over its connection.
    if (file.stallAt && body.length > file.stallAt) return response.write(body.subarray(0, file.stallAt));
    sent.bytes += body.length;
    // Two writes have no length in the answer.
    response.write(body.subarray(0, 1));
    response.end(body.subarray(1));
  });
  // By default Node closes a connection after five idle seconds, perhaps while a client in the same busy process sends its next request.
  server.keepAliveTimeout = 0;
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const close = () => (server.closeAllConnections(), server.close());
  return { url: `http://127.0.0.1:${server.address().port}/`, log, sent, close };
}

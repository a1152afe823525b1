// Bundles the page and the worker, and copies the files that they load.
import { cp } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = fileURLToPath(new URL(".", import.meta.url));

await build({
  absWorkingDir: here,
  entryPoints: { main: "main.js", worker: "cotensor/worker" },
  bundle: true,
  splitting: true,
  minify: true,
  format: "esm",
  target: "es2022",
  outdir: "dist",
});
const file = (name) => fileURLToPath(import.meta.resolve(name));
const files = ["cotensor/core.wasm", "cotensor/models.wasm", "onnxruntime-web/ort-wasm-simd-threaded.wasm", "onnxruntime-web/ort-wasm-simd-threaded.asyncify.wasm"];
for (const name of files) await cp(file(name), `${here}dist/${name.split("/").at(-1)}`);
await cp(`${here}index.html`, `${here}dist/index.html`);

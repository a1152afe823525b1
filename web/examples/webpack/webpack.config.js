import { fileURLToPath } from "node:url";

export default {
  mode: "production",
  entry: "./main.js",
  context: fileURLToPath(new URL(".", import.meta.url)),
  output: { filename: "main.js", path: fileURLToPath(new URL("dist", import.meta.url)), clean: true },
  performance: { hints: false },
};

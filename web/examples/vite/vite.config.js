import { defineConfig } from "vite";

export default defineConfig({
  // The worker imports its parts when it needs them.
  worker: { format: "es" },
  // The development server finds files beside the modules of a package only if it does not bundle them.
  optimizeDeps: { exclude: ["cotensor", "onnxruntime-web"] },
});

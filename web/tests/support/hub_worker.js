// A program's own worker: it imports its onnxruntime-web (here a small object) and adds methods.
import { GpuMemory, serve, Store } from "/index.js";

async function store() {
  const gpu = await (await navigator.gpu?.requestAdapter())?.requestDevice();
  return Store.create({ memories: gpu ? [new GpuMemory(gpu)] : [] });
}

const counts = { sessions: 0 };

serve({
  store,
  ort: { env: { versions: { web: "test" } } },
  handlers: {
    "test.wait": () => new Promise(() => undefined),
    "test.end": () => globalThis.close(),
    "test.lose": (_params, { store }) => store.memory("webgpu").gpu.destroy(),
    "test.ort": (_params, { ort }) => ort.env.versions.web,
    // Counts sessions by an object that each client makes.
    "test.join": (_params, { session }) => {
      counts.sessions += 1;
      return session.own({ dispose: () => (counts.sessions -= 1) });
    },
    "test.counts": () => counts,
  },
});

// The adapter beside plain onnxruntime-web on equal sessions, and the second user of an encoder beside the first. In a headless
// Chromium that CHROMIUM names: `node web/benches/engine.mjs`. ROUNDS lengthens it.
import { openBrowser } from "../tests/support/browsers.mjs";

const ROUNDS = Number(process.env.ROUNDS ?? 200);
// An isolated page has clocks of 5 instead of 100 microseconds.
const headers = { "cross-origin-opener-policy": "same-origin", "cross-origin-embedder-policy": "require-corp" };
const browser = await openBrowser("chromium", { headers });
console.log(`Chromium ${browser.browser.version()}, ${ROUNDS} rounds, medians`);

const found = await browser.run(async (rounds) => {
  const { Computations, GpuMemory, OrtEngine, Stage, Store } = await import("/index.js");
  const { hashes, loadModels } = await import("/models/core.js");
  const ort = await import("/ort/ort.webgpu.bundle.min.mjs");
  const { readGraph, readReference } = await import("/support/models.mjs");
  ort.env.wasm.numThreads = 1;
  ort.env.logLevel = "fatal";
  await loadModels();
  const adapter = await navigator.gpu?.requestAdapter();
  const gpu = await adapter?.requestDevice();
  const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];
  const timed = async (times, call) => {
    const start = performance.now();
    await call();
    times.push(performance.now() - start);
  };

  /** The median milliseconds of a run by the library alone and by the adapter, in turns, until the device finished. */
  async function beside(provider, name) {
    const onGpu = provider === "webgpu";
    const store = await Store.create({ memories: onGpu ? [new GpuMemory(gpu)] : [] });
    const engine = OrtEngine.create({ ort, store, provider });
    const files = await readGraph("vit", name);
    const graph = await engine.load({ files });
    const options = { executionProviders: [onGpu ? { name: "webgpu", device: gpu, storageBufferCacheMode: "lazyRelease" } : { name: "wasm" }], preferredOutputLocation: onGpu ? "gpu-buffer" : "cpu" };
    const session = await ort.InferenceSession.create(files.graph, { ...options, externalData: files.externalData });
    const [input, output] = [graph.inputs[0].name, graph.outputs[0].name];
    const { dtype, shape, data } = (await readReference("vit", `${name}.b3`)).inputs[input];
    const tensor = store.put("input", data, { dtype, shape, device: onGpu ? "webgpu" : "cpu" });
    const finished = async () => onGpu && gpu.queue.onSubmittedWorkDone();
    const plain = async () => {
      const feed = onGpu ? ort.Tensor.fromGpuBuffer(tensor.binding().buffer, { dataType: dtype, dims: shape }) : new ort.Tensor(dtype, tensor.array(), shape);
      const result = await session.run({ [input]: feed });
      await finished();
      result[output].dispose();
    };
    const adapted = async () => {
      const { outputs } = await graph.run({ [input]: tensor }, [output]);
      await finished();
      outputs[0].dispose();
    };
    const times = [[], []];
    for (let round = -5; round < rounds; round += 1) {
      const into = round < 0 ? [[], []] : times;
      const order = round % 2 === 0 ? [0, 1] : [1, 0];
      for (const which of order) await timed(into[which], which === 0 ? plain : adapted);
    }
    await session.release();
    await engine.dispose();
    store.dispose();
    return [provider, name, ...times.map(median)];
  }

  /** The median milliseconds of the first and of the second user of an encoder, for another image in each round. */
  async function users(provider) {
    const store = await Store.create({ memories: provider === "webgpu" ? [new GpuMemory(gpu)] : [] });
    const engine = OrtEngine.create({ ort, store, provider });
    const graph = await engine.load({ files: await readGraph("vit", "model") });
    const stage = new Stage({ role: "vision", graph, space: "a".repeat(64), kind: "vision_embedding", computations: new Computations(store), hashes });
    const { inputs } = await readReference("vit", "model.b3");
    const times = [[], []];
    for (let round = -5; round < rounds; round += 1) {
      inputs.pixel_values.data[0] = round;
      const into = round < 0 ? [[], []] : times;
      for (const user of [0, 1]) {
        await timed(into[user], async () => {
          const { outputs, computed } = await stage.run(inputs, ["last_hidden_state"], `user ${user}`);
          if (computed !== (user === 0)) throw new Error("the second user computed");
          outputs[0].dispose();
        });
      }
    }
    await engine.dispose();
    store.dispose();
    return [provider, ...times.map(median)];
  }

  const providers = gpu ? ["wasm", "webgpu"] : ["wasm"];
  const results = { beside: [], users: [] };
  for (const provider of providers) {
    for (const name of ["head", "model"]) results.beside.push(await beside(provider, name));
    results.users.push(await users(provider));
  }
  return results;
}, ROUNDS);

const ms = (value) => `${value.toFixed(3)} ms`.padStart(11);
for (const [provider, name, plain, adapted] of found.beside) {
  console.log(`${provider.padEnd(7)} vit/${name.padEnd(6)} onnxruntime-web ${ms(plain)}, adapter ${ms(adapted)}, ratio ${(adapted / plain).toFixed(3)}`);
}
for (const [provider, first, second] of found.users) {
  console.log(`${provider.padEnd(7)} encoder     first user ${ms(first)}, second user ${ms(second)}, ${((100 * second) / first).toFixed(2)} %`);
}
await browser.close();

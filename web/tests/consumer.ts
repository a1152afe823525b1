// What a program of a user compiles against: the published types, with the strictest checks. tests/tsconfig.json compiles it.
import * as ort from "onnxruntime-web/webgpu";
import { CotensorError, CpuMemory, GpuMemory, OrtEngine, SharedTensor, Store, type DeviceMemory, type Graph, type Stats, type Tensor } from "cotensor";

export async function example(gpu: GPUDevice): Promise<number> {
  const memories: DeviceMemory[] = [new CpuMemory(), new GpuMemory(gpu)];
  using store = await Store.create({ memories, budgets: { webgpu: 1 << 20 }, sharedTensorConfig: { allowedTypes: ["weight"] } });
  using tensor: Tensor = store.put("x", new Float32Array(4), { shape: [2, 2], device: "webgpu" });
  const entry: GPUBindGroupEntry = { binding: 0, resource: tensor.binding() };
  const stats: Stats = store.getStats();
  new SharedTensor(store, "y", [2], { producerModel: "vit" }).acquire("clip");
  try {
    // @ts-expect-error: a reason is required
    await tensor.read();
    // @ts-expect-error: no such type of elements
    store.put("x", new Float32Array(4), { dtype: "float31" });
  } catch (error) {
    if (error instanceof CotensorError && error.kind === "OverBudget") return entry.binding;
  }
  return stats.memory_usage_bytes;
}

export async function graph(store: Store, files: { graph: Uint8Array; weights: Uint8Array }): Promise<number> {
  const engine = OrtEngine.create({ ort, store, provider: "webgpu" });
  const externalData = [{ path: "model.onnx_data", data: files.weights }];
  const model: Graph = await engine.load({ files: () => ({ graph: files.graph, externalData }), key: "model" });
  const ids = { data: new BigInt64Array(4), shape: [1, 4] };
  const { outputs } = await model.run({ ids, features: store.get("features") }, ["logits"], { holder: "clip" });
  // @ts-expect-error: an array has a shape
  await model.run({ ids: new BigInt64Array(4) }, ["logits"]);
  await engine.dispose();
  return outputs.length;
}

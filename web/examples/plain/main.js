import { connectShared, createCpuBackend, createModel, SharedBackend } from "cotensor";

const models = "/models/";
const show = (id, text) => (document.querySelector(`#${id}`).textContent = text);

// One model for all tabs, in a worker.
// Workers have no import map.
const store = await connectShared({ ort: "/onnxruntime-web/ort.wasm.bundle.min.mjs" });
const shared = createModel(new SharedBackend(store, { priorityList: ["cpu"], models }), { modelId: "bert" });
const { answer, stages } = await shared.process("a photo of a cat");
show("shared", `${store.connection.mode} worker: ${answer.width} numbers, ${stages.some(({ computed }) => computed) ? "computed" : "reused"}`);

// One model of this page.
const own = createModel(await createCpuBackend({ models }), { modelId: "bert" });
show("own", `page: ${(await own.process("a photo of a cat")).answer.width} numbers`);

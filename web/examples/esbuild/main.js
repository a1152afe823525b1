import { connectShared, createCpuBackend, createModel, setAddresses, SharedBackend } from "cotensor";

// The files that build.mjs copies.
setAddresses({ core: "core.wasm", models: "models.wasm", worker: "worker.js", ortFiles: "./" });

const models = "/models/";
const show = (id, text) => (document.querySelector(`#${id}`).textContent = text);

// One model for all tabs, in a worker.
const store = await connectShared();
const shared = createModel(new SharedBackend(store, { priorityList: ["cpu"], models }), { modelId: "bert" });
const { answer, stages } = await shared.process("a photo of a cat");
show("shared", `${store.connection.mode} worker: ${answer.width} numbers, ${stages.some(({ computed }) => computed) ? "computed" : "reused"}`);

// One model of this page.
const own = createModel(await createCpuBackend({ models }), { modelId: "bert" });
show("own", `page: ${(await own.process("a photo of a cat")).answer.width} numbers`);

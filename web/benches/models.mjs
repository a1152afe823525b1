// Models in Chromium: the second user of an encoder, one user and two beside transformers.js, 32 texts beside it, and ten tabs beside one. MODELS names a folder with
// model folders, MODEL one of them (a model of texts); by default a tiny one, whose fixed costs outweigh the rest. DEVICE is that of the tabs'
// model. Memory is the sum of the proportional set sizes of the browser's processes, in which a software adapter of WebGPU has its buffers.
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { serve } from "../tests/support/server.mjs";
import { launch } from "../tests/support/tabs.mjs";

const { DEVICE = "cpu", MODELS, MODEL = "bert", ROUNDS = "3", TABS = "10" } = process.env;
const models = MODELS === undefined ? new URL("../../fixtures/tiny/", import.meta.url) : pathToFileURL(`${resolve(MODELS)}/`);
const server = await serve({ folders: { checkpoints: models } });
const ORT = "/ort/ort.webgpu.bundle.min.mjs";
const TEXT = "a photo of a cat beside a window, and some more words so that the text has a usual length";

/** Lists of 32 texts of 2 to 33 words, none twice: results are kept. */
const LISTS = Array.from({ length: 5 }, (_, list) =>
  Array.from({ length: 32 }, (_, index) => Array.from({ length: 2 + ((index * 13 + list) % 32) }, (_, word) => TEXT.split(" ")[(word * (list + 3) + index) % 18]).join(" ")),
);

const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
const mib = (bytes) => `${(bytes / 2 ** 20).toFixed(0)} MiB`;

/** PSS of this process's descendants, in bytes. */
function memory() {
  const parents = new Map();
  for (const pid of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    try {
      parents.set(pid, readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1).split(" ")[1]);
    } catch {
      // It ended.
    }
  }
  const isOurs = (pid) => pid !== undefined && pid !== "1" && (pid === String(process.pid) || isOurs(parents.get(pid)));
  let total = 0;
  for (const pid of parents.keys()) {
    if (pid === String(process.pid) || !isOurs(pid)) continue;
    try {
      total += Number(readFileSync(`/proc/${pid}/smaps_rollup`, "utf8").match(/^Pss:\s+(\d+)/m)[1]) * 1024;
    } catch {
      // It ended.
    }
  }
  return total;
}

/** A browser whose private files are on the disk, as those of users: without a profile they are in memory. */
async function withBrowser(use) {
  const profile = mkdtempSync(join(tmpdir(), "cotensor-bench-"));
  try {
    const { context, close } = await launch(profile);
    try {
      return await use(context);
    } finally {
      await close();
    }
  } finally {
    rmSync(profile, { recursive: true, force: true });
  }
}

/** Memory once the garbage of all pages is collected. */
async function settled(pages) {
  for (let round = 0; round < 3; round += 1) {
    for (const page of pages) await page.requestGC();
    await pages[0].waitForTimeout(500);
  }
  return memory();
}

/** Runs `program` in a page of a new browser; the result, and the memory beyond that of an empty page. */
const inBrowser = (program, users = 2) =>
  withBrowser(async (context) => {
    const page = await tab(context);
    const empty = await settled([page]);
    const result = await page.evaluate(program, [MODEL, TEXT, LISTS, users]);
    return { ...result, memory: (await settled([page])) - empty };
  });

/** Users with transformers.js: a pipeline each. */
async function pipelines([model, text, lists, users]) {
  const { env, pipeline } = await import("/transformers/transformers.web.min.js");
  Object.assign(env, { localModelPath: "/checkpoints/", allowRemoteModels: false, allowLocalModels: true, useBrowserCache: false, useWasmCache: false });
  env.backends.onnx.wasm.wasmPaths = "/ort/";
  const start = performance.now();
  const times = [];
  globalThis.kept = [];
  for (let user = 0; user < users; user += 1) {
    const made = await pipeline("feature-extraction", model, { dtype: "fp32", device: "wasm", use_external_data_format: true });
    const before = performance.now();
    await made(text, { pooling: "mean", normalize: true });
    times.push(performance.now() - before);
    kept.push(made);
  }
  const time = performance.now() - start;
  const texts = [];
  for (const list of lists) {
    const before = performance.now();
    await kept[0](list, { pooling: "mean", normalize: true });
    texts.push(performance.now() - before);
  }
  return { time, first: times[0], second: times[1], texts: texts.sort((a, b) => a - b)[2] };
}

/** Users with Cotensor. */
async function shared([model, text, lists, users]) {
  const { createCpuBackend, createModel } = await import("cotensor");
  const start = performance.now();
  const backend = await createCpuBackend({ models: "/checkpoints/" });
  const times = [];
  globalThis.kept = [];
  for (let user = 0; user < users; user += 1) {
    const made = createModel(backend, { modelId: model, task: "sentence-embedding" });
    await made.initialize();
    const before = performance.now();
    await made.process(text);
    times.push(performance.now() - before);
    kept.push(made);
  }
  const time = performance.now() - start;
  const texts = [];
  for (const list of lists) {
    const before = performance.now();
    await kept[0].process(list);
    texts.push(performance.now() - before);
  }
  return { time, first: times[0], second: times[1], texts: texts.sort((a, b) => a - b)[2] };
}

async function tab(context) {
  const page = await context.newPage();
  await page.goto(server.url);
  return page;
}

/** The memory of tabs that run one model of the hub, beyond that of as many empty tabs. */
const tabs = (count) =>
  withBrowser(async (context) => {
    const pages = [];
    for (let index = 0; index < count; index += 1) pages.push(await tab(context));
    const empty = await settled(pages);
    for (const page of pages) {
      await page.evaluate(
        async ([ort, model, text, device]) => {
          const { connectShared, createModel, SharedBackend } = await import("cotensor");
          const store = await connectShared({ ort, webgpu: device === "webgpu" });
          globalThis.model = createModel(new SharedBackend(store, { priorityList: [device], models: "/checkpoints/" }), { modelId: model, task: "sentence-embedding" });
          await globalThis.model.process(text);
        },
        [ORT, MODEL, TEXT, DEVICE],
      );
    }
    return (await settled(pages)) - empty;
  });

const rounds = { pipelines: [], shared: [], onePipeline: [], oneShared: [] };
for (let round = 0; round < Number(ROUNDS); round += 1) {
  rounds.pipelines.push(await inBrowser(pipelines));
  rounds.shared.push(await inBrowser(shared));
  rounds.onePipeline.push(await inBrowser(pipelines, 1));
  rounds.oneShared.push(await inBrowser(shared, 1));
}
const of = (name, field) => median(rounds[name].map((each) => each[field]));
const ms = (value) => `${value.toFixed(1)} ms`;
console.log(`${MODEL}, ${ROUNDS} rounds, medians, WebAssembly on one thread`);
console.log(`two users, from the start to the second answer: transformers.js ${ms(of("pipelines", "time"))}, Cotensor ${ms(of("shared", "time"))}: ${(of("shared", "time") / of("pipelines", "time")).toFixed(2)}`);
for (const [users, theirs, ours, bound] of [["one user", "onePipeline", "oneShared", 1.1], ["two users", "pipelines", "shared", 0.6]]) {
  const [before, now] = [of(theirs, "memory"), of(ours, "memory")];
  console.log(`${users}, memory beyond an empty page: transformers.js ${mib(before)}, Cotensor ${mib(now)}: ${(now / before).toFixed(2)} (bound: ${bound})`);
}
console.log(`one answer: transformers.js ${ms(of("pipelines", "second"))}, Cotensor's first user ${ms(of("shared", "first"))}, second user ${ms(of("shared", "second"))}: ${((of("shared", "second") / of("shared", "first")) * 100).toFixed(1)} % of the first (bound: 5 %)`);
console.log(`32 texts: transformers.js ${ms(of("pipelines", "texts"))}, Cotensor ${ms(of("shared", "texts"))}: ${(of("shared", "texts") / of("pipelines", "texts")).toFixed(2)} (bound: 1.0)`);
const [one, many] = [await tabs(1), await tabs(Number(TABS))];
console.log(`${TABS} tabs with one model on ${DEVICE}, memory beyond as many empty tabs: ${mib(many)}; one tab: ${mib(one)}: ${(many / one).toFixed(2)} (bound: 1.05)`);
server.close();

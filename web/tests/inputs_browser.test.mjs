// The forms of inputs that pages have, the addresses of files, and the build of onnxruntime-web for the CPU, in Chromium.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openBrowser } from "./support/browsers.mjs";

let site;
before(async () => (site = await openBrowser("chromium")));
after(() => site?.close());

test("an address, an <img>, a canvas and a bitmap give the result of the picture's pixels", async () => {
  const seen = await site.run(async () => {
    const { createCpuBackend, createVitModel } = await import("cotensor");
    const backend = await createCpuBackend({ models: "/models/" });
    const vit = createVitModel(backend, { modelId: "google/vit-base-patch16-224" });
    const address = "/fixtures/media/photo.png";
    const blob = await (await fetch(address)).blob();
    const img = Object.assign(new Image(), { src: address });
    await img.decode();
    const canvas = Object.assign(document.createElement("canvas"), { width: img.naturalWidth, height: img.naturalHeight });
    canvas.getContext("2d").drawImage(img, 0, 0);
    const offscreen = new OffscreenCanvas(canvas.width, canvas.height);
    offscreen.getContext("2d").drawImage(canvas, 0, 0);
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const of = async (image) => [...(await vit.process({ image })).outputs[0].values];
    const [file, drawn] = [await of(blob), await of(pixels)];
    const equals = (a, b) => a.every((value, index) => value === b[index]);
    const results = {};
    for (const [name, image] of Object.entries({ address, url: new URL(address, location.href), data: URL.createObjectURL(blob) })) results[name] = equals(await of(image), file);
    const pictures = { img, late: Object.assign(new Image(), { src: `${address}?late` }), canvas, offscreen, bitmap: await createImageBitmap(blob) };
    for (const [name, image] of Object.entries(pictures)) results[name] = equals(await of(image), drawn);
    const errors = {};
    for (const [name, image] of Object.entries({ missing: "/fixtures/media/none.png", broken: Object.assign(new Image(), { src: "/fixtures/media/none.png" }), empty: document.createElement("canvas"), number: 5 })) {
      if (name === "empty") image.width = 0;
      errors[name] = await vit.process({ image }).then(() => "none", ({ kind, message }) => `${kind} ${message}`);
    }
    await backend.dispose();
    return { results, errors };
  });
  assert.ok(Object.values(seen.results).every(Boolean), JSON.stringify(seen.results));
  assert.match(seen.errors.missing, /^NotFound .*none\.png/);
  assert.match(seen.errors.broken, /^Io image: the browser could not load .*none\.png/);
  assert.match(seen.errors.empty, /^Invalid image: width: 0 pixels/);
  assert.match(seen.errors.number, /^Invalid image: a Blob/);
});

test("a sound of Web Audio is mixed to one channel, and an address is read", async () => {
  const seen = await site.run(async () => {
    const { createCpuBackend, createWhisperModel } = await import("cotensor");
    const backend = await createCpuBackend({ models: "/models/" });
    const whisper = createWhisperModel(backend, { modelId: "openai/whisper-tiny", maxNewTokens: 4 });
    const sound = new AudioBuffer({ length: 16_000, numberOfChannels: 2, sampleRate: 16_000 });
    const mean = new Float32Array(sound.length);
    for (const channel of [0, 1]) {
      const samples = sound.getChannelData(channel);
      for (let index = 0; index < samples.length; index += 1) {
        samples[index] = Math.fround(Math.sin(index / (5 + channel)) / 2);
        mean[index] += samples[index] / 2;
      }
    }
    const first = await whisper.process({ audio: sound });
    const second = await whisper.process({ audio: mean });
    const file = await whisper.process({ audio: "/fixtures/media/speech.wav" });
    await backend.dispose();
    return [first.text === second.text, second.stages.every(({ computed }) => !computed), typeof file.text];
  });
  assert.deepEqual(seen, [true, true, "string"]);
});

test("a backend on the CPU loads the CPU build alone", async () => {
  const page = await site.open();
  const before = site.requests.length;
  await page.evaluate(async () => {
    const { createBertModel, createCpuBackend } = await import("cotensor");
    const backend = await createCpuBackend({ models: "/models/" });
    await createBertModel(backend, { modelId: "bert-base-uncased" }).process("a photo");
    await backend.dispose();
  });
  const files = site.requests.slice(before).map(({ path }) => path).filter((path) => path.startsWith("/ort/"));
  assert.deepEqual(files, ["/ort/ort.wasm.bundle.min.mjs", "/ort/ort-wasm-simd-threaded.wasm"]);
});

test("a page whose import map has no CPU build uses the other one", async () => {
  const page = await site.browser.newPage();
  await page.route(/^[^?]*\/bare$/, (route) => route.fulfill({ contentType: "text/html", body: '<!doctype html><script type="importmap">{"imports": {"cotensor": "/index.js", "onnxruntime-web/webgpu": "/ort/ort.webgpu.bundle.min.mjs"}}</script>' }));
  await page.goto(`${site.url}bare`);
  const type = await page.evaluate(async () => {
    const { createBertModel, createCpuBackend } = await import("cotensor");
    const backend = await createCpuBackend({ models: "/models/" });
    return (await createBertModel(backend, { modelId: "bert-base-uncased" }).process("a photo")).answer.type;
  });
  assert.equal(type, "embedding");
});

test("wrong addresses are corrected without loading the page again", async () => {
  const page = await site.open();
  const seen = await page.evaluate(async () => {
    const { createBertModel, createCpuBackend, setAddresses, Store } = await import("cotensor");
    const failure = (promise) => promise.then(() => "none", ({ kind, message }) => `${kind} ${message}`);
    const unknown = await failure((async () => setAddresses({ wasm: "/x" }))());
    setAddresses({ core: "/support/none.wasm", models: "/support/none.wasm", ortFiles: "/support/" });
    const core = await failure(Store.create());
    setAddresses({ models: "/support/none.wasm", ortFiles: "/support/" });
    const backend = await createCpuBackend({ models: "/models/" });
    const models = await failure(backend.initialize());
    setAddresses({ ortFiles: "/support/" });
    const bert = createBertModel(backend, { modelId: "bert-base-uncased" });
    const ort = await failure(bert.process("a photo"));
    setAddresses({ ortFiles: "/ort" });
    const library = await import("onnxruntime-web/wasm");
    const named = library.env.wasm.wasmPaths;
    library.env.wasm.wasmPaths = "/support/";
    const folder = await failure(bert.process("a photo"));
    library.env.wasm.wasmPaths = "/ort/";
    return { unknown, core, models, ort, named, folder, right: await failure(bert.process("a photo")) };
  });
  assert.match(seen.unknown, /^Invalid addresses: no file of the package is named wasm/);
  assert.match(seen.core, /^Io .*\/support\/none\.wasm: .*setAddresses\(\{ core: … \}\)/);
  assert.match(seen.models, /^Io .*\/support\/none\.wasm: .*setAddresses\(\{ models: … \}\)/);
  assert.match(seen.ort, /^NotFound the files of onnxruntime-web are not at .*\/support\/ort-wasm-simd-threaded\.wasm/);
  assert.match(seen.named.wasm, /\/support\/ort-wasm-simd-threaded\.wasm$/);
  assert.match(seen.folder, /^NotFound the files of onnxruntime-web are not at \/support\//);
  assert.equal(seen.right, "none");
});

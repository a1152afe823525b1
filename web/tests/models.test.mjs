// Models of ten families in Chromium and in Firefox, on the GPU and on the CPU, beside the references of the Rust side.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import { hasWebGpu, openBrowser, withBackend } from "./support/browsers.mjs";
import { readSafetensors, relativeError } from "./support/safetensors.mjs";

const BROWSERS = ["chromium", "firefox"];
const DEVICES = ["cpu", "webgpu"];
/** The largest difference from the reference, over the deviation of its numbers. */
const ERROR_MAX = 1e-4;
/** The numbers behind the answers of the Rust library. */
const ANSWERS = JSON.parse(await readFile(new URL("../../protocol/answers.json", import.meta.url), "utf8"));
const tiny = (path) => readFile(new URL(`../../fixtures/tiny/${path}`, import.meta.url));
const sites = {};

before(async () => {
  for (const name of BROWSERS) sites[name] = await openBrowser(name);
});
after(async () => {
  for (const site of Object.values(sites)) await site.close();
});

for (const browser of BROWSERS) {
  for (const device of DEVICES) {
    const on = (name, body) =>
      test(`${browser}, ${device}: ${name}`, async (context) => {
        const site = sites[browser];
        if (device === "webgpu" && !(await hasWebGpu(site.page, context))) return;
        await body((program, argument) => withBackend(site, device, program, argument));
      });

    on("hidden states of BERT and ViT equal the references", async (run) => {
      const seen = await run(async ({ backend, createBertModel, createVitModel }) => {
        const bert = createBertModel(backend, { modelId: "bert-base-uncased" });
        const vit = createVitModel(backend, { modelId: "google/vit-base-patch16-224" });
        await Promise.all([bert.initialize(), vit.initialize()]);
        const stages = {};
        for (const [model, role, files] of [[bert, "encoder", "bert"], [vit, "encoder", "vit"]]) stages[files] = (await backend.openModel(model.modelId, {})).stage(role);
        const { readSafetensors } = await import("/support/safetensors.mjs");
        const results = {};
        for (const [name, input, shape] of [["bert", "model.b3s16", [3, 16]], ["vit", "model.b3", [3, 3, 32, 32]]]) {
          const bytes = new Uint8Array(await (await fetch(`/fixtures/tiny/${name}/reference.safetensors`)).arrayBuffer());
          const tensors = readSafetensors(bytes);
          const inputs = Object.fromEntries(Object.entries(tensors).filter(([key]) => key.startsWith(`${input}.in.`)).map(([key, { data, shape, dtype }]) => [key.split(".in.")[1], { data, shape, dtype }]));
          const stage = await stages[name];
          const { outputs, computed } = await stage.run(inputs, ["last_hidden_state"], "test");
          results[name] = { computed, device: outputs[0].device, shape: outputs[0].shape, values: Array.from(await outputs[0].read("compare with the reference")) };
        }
        return { results, device: backend.device };
      });
      assert.equal(seen.device, device);
      for (const [name, key] of [["bert", "model.b3s16"], ["vit", "model.b3"]]) {
        const { data, shape } = readSafetensors(new Uint8Array(await tiny(`${name}/reference.safetensors`)))[`${key}.out.last_hidden_state`];
        const { values, ...result } = seen.results[name];
        assert.deepEqual(result, { computed: true, device, shape });
        const error = relativeError(values, data);
        assert.ok(error <= ERROR_MAX, `${name}: ${error}`);
      }
    });

    on("a second model reads the tensor of the first, and no graph runs twice", async (run) => {
      const seen = await run(async ({ backend, createVitModel }) => {
        const image = await (await fetch("/fixtures/media/photo.png")).blob();
        const embedding = createVitModel(backend, { modelId: "google/vit-base-patch16-224" });
        const classes = createVitModel(backend, { modelId: "/fixtures/tiny/vit", task: "image-classification" });
        const [first, second, third] = [await embedding.process({ image }), await classes.process({ image }), await embedding.process({ image })];
        const shared = embedding.getSharedTensor("vision_embedding");
        const stats = backend.getStats();
        const reports = [first, second, third].map(({ task, answer, stages }) => [task, answer.type, stages.map(({ role, computed }) => [role, computed])]);
        await embedding.dispose();
        const left = shared.getReferenceCount();
        await classes.dispose();
        return { reports, left, kind: shared.kind, dimensions: shared.tensor.dimensions, after: backend.getStats().loaded_models, loaded: stats.loaded_models };
      });
      assert.deepEqual(seen.reports, [
        ["image-embedding", "embedding", [["encoder", true]]],
        ["image-classification", "label", [["encoder", false], ["head", true]]],
        ["image-embedding", "embedding", [["encoder", false]]],
      ]);
      assert.deepEqual([seen.kind, seen.dimensions, seen.left, seen.loaded, seen.after], ["vision_embedding", [1, 17, 32], 0, 2, 0]);
    });

    on("CLIP ranks texts beside an image, BERT embeds a sentence and ViT an image, as the Rust library", async (run) => {
      const seen = await run(async ({ backend, createBertModel, createClipModel, createVitModel }) => {
        const image = await (await fetch("/fixtures/media/photo.png")).blob();
        const clip = createClipModel(backend, { modelId: "openai/clip-vit-base-patch16" });
        const bert = createBertModel(backend, { modelId: "bert-base-uncased" });
        const texts = ["a photo of a cat", "a photo of a dog", "a diagram"];
        const ranked = await clip.process({ image, texts });
        const tokens = await bert.tokenize("a photo of a cat");
        const embedded = await bert.process(tokens);
        const vit = createVitModel(backend, { modelId: "google/vit-base-patch16-224" });
        const outputs = {};
        for (const [name, result] of Object.entries({ clip: ranked, bert: embedded, vit: await vit.process({ image }) })) {
          outputs[name] = Object.fromEntries(result.outputs.map(({ name, values }) => [name, [...values]]));
        }
        return { ranked: ranked.answer, notices: ranked.notices, tokens: tokens.input_ids, task: embedded.task, outputs };
      });
      const { type, texts } = seen.ranked;
      assert.deepEqual([type, texts.length, new Set(texts.map(([text]) => text)).size], ["ranking", 3, 3]);
      assert.ok(texts.every(([, cosine], index) => index === 0 || cosine <= texts[index - 1][1]), "best first");
      assert.ok(Math.abs(texts.reduce((sum, [, , probability]) => sum + probability, 0) - 1) < 1e-5);
      assert.match(seen.notices.join(), /logit_scale/);
      assert.ok(seen.tokens.length > 3 && seen.task === "sentence-embedding");
      for (const [name, outputs] of Object.entries(seen.outputs)) {
        assert.deepEqual(Object.keys(outputs), Object.keys(ANSWERS[name]));
        for (const [output, values] of Object.entries(outputs)) {
          const error = relativeError(values, ANSWERS[name][output]);
          assert.ok(error <= ERROR_MAX, `${name} ${output}: ${error}`);
        }
      }
    });

    on("a program may write to its result, and tokens that are not the text's are refused", async (run) => {
      const seen = await run(async ({ backend, createBertModel }) => {
        const bert = createBertModel(backend, { modelId: "bert-base-uncased" });
        const classes = createBertModel(backend, { modelId: "/fixtures/tiny/bert", task: "text-classification" });
        const same = [];
        for (const model of [bert, classes]) {
          const first = await model.process("a photo");
          const before = first.outputs.map(({ values }) => [...values]);
          for (const { values } of first.outputs) values.fill(7);
          const next = await model.process("a photo");
          same.push(JSON.stringify(next.outputs.map(({ values }) => [...values])) === JSON.stringify(before));
        }
        const tokens = await bert.tokenize("a photo");
        const refusal = (input) => bert.process(input).then(() => "no error", ({ kind, message }) => `${kind} ${message}`);
        const others = [{ ...tokens, input_ids: [...tokens.input_ids].reverse() }, { text: { ...tokens, attention_mask: tokens.attention_mask.map(() => 0) } }];
        const budgets = backend.getStats().devices.map(({ max_memory_bytes }) => max_memory_bytes);
        return { same, budgets, errors: await Promise.all(others.map(refusal)), equal: (await bert.process({ text: tokens })).task };
      });
      assert.deepEqual([seen.same, seen.equal], [[true, true], "sentence-embedding"]);
      assert.ok(seen.budgets.every((bytes) => bytes >= 2 ** 26 && bytes <= 2 ** 31), String(seen.budgets));
      assert.match(seen.errors[0], /^Invalid input_ids: .* not those of the text "a photo"/);
      assert.match(seen.errors[1], /^Invalid attention_mask: /);
    });

    on("Whisper writes the tokens of the Rust library", async (run) => {
      const seen = await run(async ({ backend, createWhisperModel }) => {
        const sound = new Uint8Array(await (await fetch("/fixtures/media/speech.wav")).arrayBuffer());
        const whisper = createWhisperModel(backend, { modelId: "openai/whisper-tiny", maxNewTokens: 12 });
        let pieces = "";
        const first = await whisper.process({ audio: sound }, { onText: (piece) => (pieces += piece) });
        const again = await whisper.process({ audio: sound });
        return { pieces, text: first.text, again: again.text, tokens: [...first.outputs[0].values], stages: again.stages.map(({ role, computed }) => [role, computed]), made: Object.keys(first.output_tensors) };
      });
      assert.deepEqual(seen.tokens, ANSWERS.whisper.tokens);
      assert.deepEqual([seen.again, seen.pieces.trim()], [seen.text, seen.text]);
      assert.deepEqual(seen.stages.filter(([role]) => role === "encoder"), [["encoder", false]]);
      assert.ok(seen.stages.every(([, computed]) => !computed), "a transcript is a result, too");
      assert.ok(seen.made.includes("audio_embedding"));
    });

    on("DETR finds the objects of the Rust library", async (run) => {
      const seen = await run(async ({ backend, createDetrModel }) => {
        const image = await (await fetch("/fixtures/media/photo.png")).blob();
        const { width, height } = await createImageBitmap(image);
        const found = {};
        for (const [name, threshold] of [["all", 0], ["few", undefined], ["wrong", 2]]) {
          const detr = createDetrModel(backend, { modelId: "/fixtures/tiny/detr", ...(threshold === undefined ? {} : { threshold }) });
          found[name] = await detr.process({ image }).then(({ answer, outputs }) => ({ answer, outputs: Object.fromEntries(outputs.map(({ name, values }) => [name, [...values]])) }), ({ kind, message }) => `${kind} ${message}`);
        }
        return { ...found, size: [width, height] };
      });
      // The detector multiplies a difference of rounding in the encoder's result by up to 60; on a GPU that is 8e-6.
      for (const [output, values] of Object.entries(ANSWERS.detr)) {
        const error = relativeError(seen.all.outputs[output], values);
        assert.ok(error <= 10 * ERROR_MAX, `${output}: ${error}`);
      }
      const { type, objects } = seen.all.answer;
      assert.deepEqual([type, objects.length, seen.few.answer.objects], ["objects", ANSWERS.detr.pred_boxes.length / 4, objects.filter(({ score }) => score > 0.5)]);
      const [x, , width] = ANSWERS.detr.pred_boxes;
      assert.ok(Math.abs(objects[0].box[0] - (x - width / 2) * seen.size[0]) < 0.1, "boxes are in pixels");
      assert.match(seen.wrong, /^Invalid .*threshold/);
    });

    on("decoders write the tokens of the Rust library, once", async (run) => {
      const seen = await run(async ({ backend, createModel }) => {
        const image = await (await fetch("/fixtures/media/photo.png")).blob();
        const text = "a photo of a cat";
        const results = {};
        for (const [name, input, task] of [["llama", text], ["t5", text], ["bart", text, "summarization"], ["blip", { image }, "image-to-text"], ["llava", { image, text: "a photo of <image>" }]]) {
          const model = createModel(backend, { modelId: `/fixtures/tiny/${name}`, maxNewTokens: 12, ...(task ? { task } : {}) });
          const pieces = { first: [], again: [] };
          const first = await model.process(input, { onText: (piece) => pieces.first.push(piece) });
          const again = await model.process(input, { onText: (piece) => pieces.again.push(piece) });
          results[name] = { pieces, answer: first.answer, text: again.text, tokens: [...first.outputs[0].values], task: first.task, computed: again.stages.some(({ computed }) => computed) };
          await model.dispose();
        }
        return results;
      });
      for (const [name, { pieces, answer, text, tokens, computed }] of Object.entries(seen)) {
        assert.deepEqual([pieces.first.join(""), pieces.again.join("")], [text, text], name);
        assert.deepEqual(tokens, ANSWERS[name].tokens, name);
        assert.deepEqual([answer.type, answer.text, answer.tokens, computed], ["text", text, tokens.length, false], name);
      }
      assert.ok(seen.llama.pieces.first.length > 1, JSON.stringify(seen.llama.pieces));
      assert.deepEqual([seen.llama.task, seen.t5.task], ["text-generation", "text2text-generation"]);
      assert.ok(seen.llama.answer.prompt_tokens > 3 && seen.bart.answer.prompt_tokens > 3 && seen.blip.answer.prompt_tokens === 0);
    });

    on("a drawn text follows from its seed, and a caption from its beginning", async (run) => {
      const seen = await run(async ({ backend, createModel }) => {
        const image = await (await fetch("/fixtures/media/photo.png")).blob();
        const written = async (modelId, input, options) => {
          const { answer, notices, outputs } = await createModel(backend, { modelId: `/fixtures/tiny/${modelId}`, maxNewTokens: 8, ...options }).process(input);
          return { answer, notices, tokens: [...outputs[0].values] };
        };
        const drawn = (seed) => written("llama", "a photo", { doSample: true, temperature: 5, topK: 50, ...(seed === undefined ? {} : { seed }) });
        return { one: await drawn(1), same: await drawn(1), two: await drawn(2), unseeded: await drawn(undefined), caption: await written("blip", { image, text: "a photo of" }) };
      });
      assert.deepEqual(seen.one.tokens, seen.same.tokens);
      assert.notDeepEqual(seen.one.tokens, seen.two.tokens);
      assert.match(seen.unseeded.notices.join(), /seed/);
      assert.ok(seen.caption.answer.prompt_tokens > 0 && !seen.caption.notices.some((notice) => /reads no/.test(notice)), JSON.stringify(seen.caption));
    });

    on("options that a task does not read, and inputs that it lacks, are refused", async (run) => {
      const seen = await run(async ({ backend, createModel }) => {
        const image = await (await fetch("/fixtures/media/photo.png")).blob();
        const half = "a photo \ud83d";
        const cases = {
          threshold: ["bert", "a photo", { threshold: 0.5 }],
          maxNewTokens: ["bert", "a photo", { maxNewTokens: 3 }],
          head: ["detr", { image }, { head: "other" }],
          chat: ["t5", "a photo", { chat: true }],
          template: ["llama", "a photo", { chat: true }],
          notANumber: ["llama", "a photo", { doSample: true, temperature: NaN }],
          fraction: ["llama", "a photo", { maxNewTokens: 1.5 }],
          infinite: ["detr", { image }, { threshold: Infinity }],
          flag: ["llama", "a photo", { doSample: "yes" }],
          unknown: ["llama", "a photo", { maxTokens: 3 }],
          rerank: ["bert", "a photo", { task: "rerank" }],
          noText: ["llava", { image }, { task: "image-text-to-text" }],
          half: ["bert", half, {}],
          halves: ["clip", { image, texts: [half, "a photo"] }, {}],
        };
        const found = {};
        for (const [name, [model, input, options]] of Object.entries(cases)) {
          found[name] = await createModel(backend, { modelId: `/fixtures/tiny/${model}`, ...options }).process(input).then(({ answer }) => answer.type, ({ kind, message }) => `${kind} ${message}`);
        }
        const clip = createModel(backend, { modelId: "/fixtures/tiny/clip" });
        found.onText = await clip.process("a photo", { onText: () => undefined }).then(() => "", ({ kind, message }) => `${kind} ${message}`);
        await clip.process("a photo");
        const tensor = clip.getSharedTensor("vision_text_joint");
        found.oneEmbedding = await clip.processWithSharedEmbedding({ image, texts: ["a", "b"] }, tensor).then(({ answer }) => JSON.stringify(answer), ({ kind, message }) => `${kind} ${message}`);
        return found;
      });
      for (const name of ["threshold", "head", "chat"]) assert.match(seen[name], new RegExp(`^Invalid .*${name}`), name);
      assert.match(seen.maxNewTokens, /^Invalid .*maxNewTokens: sentence-embedding decodes no text/);
      assert.match(seen.template, /^Invalid chat_template.jinja: chat: the model has no chat template/);
      assert.match(seen.notANumber, /^Invalid temperature: a number is required, not NaN/);
      assert.match(seen.fraction, /^Invalid maxNewTokens: an integer/);
      assert.match(seen.infinite, /^Invalid threshold: a number is required, not Infinity/);
      assert.match(seen.flag, /^Invalid doSample: true or false is required, not yes/);
      assert.match(seen.unknown, /^Invalid maxTokens: unknown/);
      assert.match(seen.onText, /^Invalid onText: .*decodes no text/);
      assert.match(seen.rerank, /^Invalid .*texts: rerank needs texts/);
      assert.match(seen.noText, /^Invalid text: /);
      assert.deepEqual([seen.half, seen.halves], ["embedding", "ranking"]);
      assert.match(seen.oneEmbedding, /^Invalid .*texts/);
    });
  }
}

test("webnn: tensors of models stay in WebNN, and the answers are those of the Rust library", async () => {
  const site = await openBrowser("webnn");
  try {
    const seen = await withBackend(site, "webnn", async ({ backend, createBertModel, createVitModel }) => {
      const image = await (await fetch("/fixtures/media/photo.png")).blob();
      const vit = createVitModel(backend, { modelId: "google/vit-base-patch16-224" });
      const bert = createBertModel(backend, { modelId: "bert-base-uncased" });
      const results = { vit: await vit.process({ image }), bert: await bert.process("a photo of a cat") };
      const outputs = Object.fromEntries(Object.entries(results).map(([name, { outputs }]) => [name, [...outputs[0].values]]));
      return { devices: [backend.device, vit.getSharedTensor("vision_embedding").device, bert.getSharedTensor("text_embedding").device], outputs };
    });
    assert.deepEqual(seen.devices, ["webnn", "webnn", "webnn"]);
    for (const [name, values] of Object.entries(seen.outputs)) {
      const [expected] = Object.values(ANSWERS[name]);
      assert.ok(relativeError(values, expected) <= ERROR_MAX, name);
    }
  } finally {
    await site.close();
  }
});

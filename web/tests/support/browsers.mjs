// Browsers for tests. CHROMIUM names the one with WebGPU, WEBNN_CHROMIUM one with WebNN (by default that of @sparticuz/chromium).
import assert from "node:assert/strict";
import { chromium } from "playwright-core";
import { launchFirefox } from "./firefox.mjs";
import { serve } from "./server.mjs";

const { CHROMIUM, WEBNN_CHROMIUM, REQUIRE_WEBGPU } = process.env;

/** How each browser is started. */
const BROWSERS = {
  // The software adapter needs no graphics card.
  async chromium() {
    assert.ok(CHROMIUM, "CHROMIUM names no browser; run `make test-web`");
    return chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"] });
  },
  /** As Chromium is without a graphics card. */
  async plain() {
    assert.ok(CHROMIUM, "CHROMIUM names no browser; run `make test-web`");
    return chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", "--disable-gpu", "--disable-features=WebGPU"] });
  },
  async webnn() {
    const executablePath = WEBNN_CHROMIUM ?? (await (await import("@sparticuz/chromium")).default.executablePath());
    return chromium.launch({ executablePath, args: ["--no-sandbox", "--enable-features=WebMachineLearningNeuralNetwork"] });
  },
  firefox: launchFirefox,
};

/**
 * Starts a server and the browser of that name, and opens an empty page. `run(program, argument)` calls a function in a
 * page; `open` makes another page.
 */
export async function openBrowser(name = "chromium", options = {}) {
  const server = await serve(options);
  try {
    const browser = await BROWSERS[name]();
    const open = async () => {
      const page = await browser.newPage();
      await page.goto(server.url);
      return page;
    };
    const page = await open();
    const run = (program, argument) => page.evaluate(program, argument);
    const close = async () => {
      await browser.close();
      server.close();
    };
    return { browser, close, open, page, run, requests: server.requests, url: server.url };
  } catch (error) {
    server.close();
    throw error;
  }
}

/**
 * Whether the page has a WebGPU adapter. Without one the test is skipped. With REQUIRE_WEBGPU that is an error, unless the browser was built
 * without WebGPU, as Firefox before 141: its `requestAdapter` rejects with NotSupportedError.
 */
export async function hasWebGpu(page, context) {
  const missing = await page.evaluate(async () => {
    try {
      return (await navigator.gpu?.requestAdapter()) ? undefined : "the browser has no WebGPU adapter";
    } catch (error) {
      return String(error);
    }
  });
  if (missing === undefined) return true;
  assert.ok(!REQUIRE_WEBGPU || missing.startsWith("NotSupportedError"), missing);
  context.skip(missing);
  return false;
}

/** Runs `program` in a page with a backend on `device`. */
export async function withBackend(site, device, program, argument) {
  const text = `async (argument) => {
    const cotensor = await import("cotensor");
    const backend = await cotensor.createBackend(${JSON.stringify(device)}, { models: "/models/" });
    try {
      return await (${program})({ ...cotensor, backend }, argument);
    } finally {
      await backend.dispose();
    }
  }`;
  return site.page.evaluate(`(${text})(${JSON.stringify(argument)})`);
}

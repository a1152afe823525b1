// Firefox for tests, driven by WebDriver BiDi. FIREFOX names the browser; its GPU is Mesa's software adapter where there is no other.
import assert from "node:assert/strict";
import puppeteer from "puppeteer-core";

const { FIREFOX } = process.env;

/** WebGPU is behind preferences in this browser on Linux. */
const PREFERENCES = { "dom.webgpu.enabled": true, "dom.webgpu.workers.enabled": true, "gfx.webgpu.ignore-blocklist": true };

/** A headless Firefox. Its pages have `goto` and `evaluate`, as those of the other browsers. */
export async function launchFirefox() {
  assert.ok(FIREFOX, "FIREFOX names no browser; run `make test-web`");
  return puppeteer.launch({ browser: "firefox", executablePath: FIREFOX, headless: true, extraPrefsFirefox: PREFERENCES });
}

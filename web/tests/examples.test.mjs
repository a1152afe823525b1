// The projects in `examples`, built by their bundlers and opened in two tabs of Chromium. They use the package as npm publishes it.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cp, mkdir, readFile, rm } from "node:fs/promises";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { serveFolders } from "./support/site.mjs";
import { launch, sharedWorkers } from "./support/tabs.mjs";

const web = new URL("../", import.meta.url);
const examples = new URL("examples/", web);
const bin = (name) => fileURLToPath(new URL(`node_modules/.bin/${name}`, web));
const run = (program, args, name) => promisify(execFile)(program, args, { cwd: fileURLToPath(new URL(`${name}/`, examples)) });

/** How each project is built. */
const BUILDS = {
  vite: () => run(bin("vite"), ["build", "--logLevel", "warn"], "vite"),
  webpack: async () => {
    // Minification takes most of the time, and changes no address.
    await run(bin("webpack"), ["--no-optimization-minimize"], "webpack");
    await cp(new URL("webpack/index.html", examples), new URL("webpack/dist/index.html", examples));
  },
  esbuild: () => run("node", ["build.mjs"], "esbuild"),
  plain: undefined,
};

before(async () => {
  const installed = new URL("node_modules/cotensor/", examples);
  await rm(installed, { recursive: true, force: true });
  await mkdir(installed, { recursive: true });
  const { files } = JSON.parse(await readFile(new URL("package.json", web), "utf8"));
  for (const file of ["package.json", ...files]) await cp(new URL(file, web), new URL(file, installed), { recursive: true });
});

let browser;
before(async () => (browser = await launch()));
after(() => browser?.close());

for (const [name, build] of Object.entries(BUILDS)) {
  test(`${name}: two tabs share a worker, and the page's own model loads the CPU build alone`, async () => {
    await build?.();
    const site = await serveFolders({
      "/": new URL(build ? `${name}/dist/` : `${name}/`, examples),
      "/models/": new URL("../../fixtures/tiny/", import.meta.url),
      ...(build ? {} : { "/cotensor/": new URL("dist/", web), "/onnxruntime-web/": new URL("node_modules/onnxruntime-web/dist/", web) }),
    });
    const context = await browser.browser.newContext();
    try {
      const seen = [];
      for (const tab of [1, 2]) {
        const page = await context.newPage();
        const errors = [];
        page.on("pageerror", (error) => errors.push(error));
        await page.goto(site.url);
        const shown = await page.waitForFunction(() => document.querySelector("#own").textContent !== "…" && document.body.innerText, undefined, { timeout: 60_000 }).catch(() => undefined);
        assert.ok(shown, `tab ${tab}: ${errors.join("\n") || "nothing is shown"}`);
        seen.push((await shown.jsonValue()).split(/\n+/));
      }
      assert.deepEqual(seen, [
        ["shared worker: 32 numbers, computed", "page: 32 numbers"],
        ["shared worker: 32 numbers, reused", "page: 32 numbers"],
      ]);
      const { workers } = await sharedWorkers(browser.browser);
      assert.equal(workers.filter(({ url }) => url.startsWith(site.url)).length, 1);
      assert.ok(!site.requests.some((path) => path.includes("asyncify")), "a CPU needs no build for GPUs");
    } finally {
      await context.close();
      site.close();
    }
  });
}

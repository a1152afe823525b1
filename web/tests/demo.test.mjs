// The page of `make web-demo` on a telephone's width, in Chromium.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { Clock } from "../demo/clock.js";
import { launch } from "./support/tabs.mjs";

const WIDTH = 390;
let browser, server, url;

before(async () => {
  server = spawn(process.execPath, [fileURLToPath(new URL("../demo/serve.mjs", import.meta.url)), "--port", "0"], { stdio: ["ignore", "pipe", "inherit"] });
  url = await new Promise((resolve) => server.stdout.once("data", (line) => resolve(String(line).trim())));
  browser = await launch();
});
after(async () => {
  await browser?.close();
  server?.kill();
});

test("labels are readable, nothing is wider than the page, and the run says how long it takes", async () => {
  const context = await browser.browser.newContext({ viewport: { width: WIDTH, height: 844 }, colorScheme: "dark" });
  const page = await context.newPage();
  await page.goto(url);
  await page.selectOption("[name=device]", "cpu");
  await page.fill("[name=users]", "2");
  await page.evaluate(() => {
    globalThis.said = [];
    new MutationObserver(() => said.push(document.querySelector("#status").textContent)).observe(document.querySelector("#status"), { childList: true });
  });
  await page.click("[type=submit]");
  await page.waitForFunction(() => /^Done on cpu/.test(document.querySelector("#status").textContent) && document.querySelector("#list tbody tr"), undefined, { timeout: 60_000 });
  const seen = await page.evaluate(() => ({
    said,
    page: document.documentElement.scrollWidth,
    wide: [...document.querySelectorAll(".scroll")].filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.firstElementChild.id),
    labels: [...document.querySelectorAll("#history text")].map((each) => each.getBoundingClientRect().height),
    cut: [...document.querySelectorAll("#history text")].filter((each) => each.getBoundingClientRect().right > innerWidth || each.getBoundingClientRect().left < 0).length,
    columns: [...document.querySelector("#list tbody tr").cells].map((each) => each.dataset.column),
    ground: getComputedStyle(document.body).backgroundColor,
  }));
  assert.ok(seen.said.some((text) => /^Without sharing: user 1 of 2, for \d+ s\./.test(text)), seen.said.join("\n"));
  assert.deepEqual([seen.page, seen.wide, seen.cut], [WIDTH, [], 0]);
  assert.ok(seen.labels.length > 0 && seen.labels.every((height) => height >= 11), seen.labels.join());
  assert.deepEqual(seen.columns, ["Name", "Kind", "Shape", "Size", "Device", "Holders", "Hits"]);
  assert.equal(seen.ground, "rgb(20, 23, 26)");
  await context.close();
});

test("the first step tells how long the others take, and a software adapter is named", (context) => {
  context.mock.timers.enable({ apis: ["setInterval"] });
  let now = 0;
  context.mock.method(performance, "now", () => now);
  const said = [];
  const clock = new Clock((text) => said.push(text));
  const pass = (seconds) => {
    for (let each = 0; each < seconds; each += 1) {
      now += 1000;
      context.mock.timers.tick(1000);
    }
  };
  clock.start(4, true);
  clock.step("user 1 of 3");
  pass(10);
  assert.match(said.at(-1), /^user 1 of 3, for 10 s\. This adapter of WebGPU is software/);
  clock.step("user 2 of 3");
  pass(4);
  assert.equal(said.at(-1), "user 2 of 3, for 4 s. About 26 s left.");
  clock.stop("Done");
  pass(3);
  assert.equal(said.at(-1), "Done");
});

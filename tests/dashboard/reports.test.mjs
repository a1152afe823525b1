// The pages of `cotensor demo --report` and `cotensor plan --report` in a headless Chromium: on a telephone and on a desk, light and dark.
//
//     COTENSOR=target/debug/cotensor CHROMIUM=/usr/bin/chromium node --test

import assert from "node:assert/strict";
import {execFileSync} from "node:child_process";
import {cpSync, mkdtempSync, rmSync, writeFileSync} from "node:fs";
import {tmpdir} from "node:os";
import path from "node:path";
import {after, before, test} from "node:test";
import {pathToFileURL} from "node:url";
import {chromium} from "playwright-core";

const {EXAMPLES, CHROMIUM = "/usr/bin/chromium", SCREENSHOTS, COTENSOR = path.join(EXAMPLES ?? "", "../cotensor")} = process.env;
const TINY = new URL("../../fixtures/tiny/", import.meta.url);
const GROUND = {light: "rgb(255, 255, 255)", dark: "rgb(21, 24, 27)"};
const folder = mkdtempSync(path.join(tmpdir(), "cotensor-reports-"));
let browser;

const run = (...options) => execFileSync(path.resolve(COTENSOR), options, {cwd: folder, stdio: "ignore", env: {...process.env, HOME: folder, XDG_CACHE_HOME: folder}});

before(async () => {
  browser = await chromium.launch({executablePath: CHROMIUM, args: ["--no-sandbox"]});
});
after(async () => {
  await browser?.close();
  rmSync(folder, {recursive: true, force: true});
});

/** The number of charts, and of those that are too narrow to read. */
const charts = page => page.locator("svg:has(polyline)").evaluateAll(all => [all.length, all.filter(each => each.getBoundingClientRect().width < 200).length]);

/** Opens a page at both widths and in both schemes. `check` gets it. */
async function fits(file, check) {
  for (const colorScheme of ["light", "dark"]) for (const width of [1280, 390]) {
    const context = await browser.newContext({colorScheme, viewport: {width, height: 844}});
    const page = await context.newPage();
    await page.goto(pathToFileURL(path.join(folder, file)).href);
    const what = `${file}, ${colorScheme}, ${width} pixels`;
    const seen = await page.evaluate(() => {
      const visible = [...document.querySelectorAll("body *")].filter(each => each.getClientRects().length > 0);
      const wide = each => each.getBoundingClientRect().right > innerWidth + 1 || each.getBoundingClientRect().left < -1;
      const labels = [...document.querySelectorAll(".chart span, .legend span")].map(each => parseFloat(getComputedStyle(each).fontSize));
      return {
        page: document.documentElement.scrollWidth,
        wide: visible.filter(wide).map(each => `${each.tagName} ${each.textContent.slice(0, 40)}`),
        labels: labels.length,
        small: labels.filter(size => size < 11),
        ground: getComputedStyle(document.body).backgroundColor,
        ink: getComputedStyle(document.body).color,
      };
    });
    assert.ok(seen.page <= width, `${what}: the page has ${seen.page} pixels`);
    assert.deepEqual([seen.wide, seen.small], [[], []], what);
    assert.ok(seen.labels > 5, `${what}: ${seen.labels} labels`);
    assert.equal(seen.ground, GROUND[colorScheme], what);
    assert.notEqual(seen.ground, seen.ink, what);
    await check(page, what);
    if (SCREENSHOTS) await page.screenshot({path: path.join(SCREENSHOTS, `${file}-${colorScheme}-${width}.png`), fullPage: true});
    await context.close();
  }
}

test("the page of a plan fits a telephone, with a panel for each strategy and no crushed bar", async () => {
  const tensors = Array.from({length: 20}, (_, index) => ({id: `w${index}`, size_bytes: 4000}));
  const operations = tensors.map(({id}) => ({name: "linear", uses: [id], compute_us: 1, cpu_us: null, workspace_bytes: 0}));
  writeFileSync(path.join(folder, "trace.json"), JSON.stringify({tensors, operations, periods: 30}));
  run("plan", "trace.json", "--budget", "40kB", "--bandwidth", "1GB/s", "--report", "plan.html");
  await fits("plan.html", async (page, what) => {
    assert.deepEqual(await charts(page), [4, 0], what);
    const bars = await page.locator("i").evaluateAll(all => all.map(each => each.getBoundingClientRect().width));
    assert.ok(bars.length >= 4 && Math.max(...bars) >= 50 && bars.every(width => width >= 1), `${what}: ${bars}`);
  });
});

test("the page of a demo fits a telephone", async () => {
  const graphs = path.join(folder, "models/bert-base/onnx");
  cpSync(new URL("bert", TINY), path.join(folder, "models/bert-base"), {recursive: true});
  cpSync(path.join(graphs, "head.onnx"), path.join(graphs, "head.sentiment.onnx"));
  run("demo", "--scenario", "bert", "--scenario", "processes", "--processes", "3", "--engine", "rten", "--models", "models", "--repeats", "1", "--threads", "1", "--report", "demo.html");
  await fits("demo.html", async (page, what) => assert.deepEqual(await charts(page), [1, 0], what));
});

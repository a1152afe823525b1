// The daemon's page in a headless Chromium: the page shows the daemon's state, and follows its changes.
//
//     EXAMPLES=target/debug/examples CHROMIUM=/usr/bin/chromium node --test
//
// COTENSOR, if set, is the `cotensor` program [default: beside the examples' folder]. SCREENSHOTS, if set, is a folder for
// screenshots of the page, at 1280 and 390 pixels and in its light and dark schemes.

import assert from "node:assert/strict";
import {spawn} from "node:child_process";
import {existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync} from "node:fs";
import {tmpdir} from "node:os";
import path from "node:path";
import {after, before, test} from "node:test";
import {chromium} from "playwright-core";

const {EXAMPLES, CHROMIUM = "/usr/bin/chromium", SCREENSHOTS, COTENSOR = path.join(EXAMPLES ?? "", "../cotensor")} = process.env;
const TOKEN = "a-token-for-this-test";
const folder = mkdtempSync(path.join(tmpdir(), "cotensor-dashboard-"));
const LIMIT = {timeout: 120_000};
let browser;

// Starts an example and kills it at the end of the test. The run of all tests waits for programs that are left.
function program(t, name, options) {
  const child = spawn(path.join(EXAMPLES, name), options, {stdio: ["pipe", "pipe", "inherit"]});
  t.after(() => child.kill("SIGKILL"));
  return child;
}

// Starts a daemon. Returns its address, the header that its requests need, and a function that stops it.
async function daemon(t, name, ...options) {
  const socket = path.join(folder, name);
  const child = program(t, "serve", [socket, "127.0.0.1:0", ...options]);
  const ended = new Promise(done => child.once("exit", done));
  const url = await new Promise((done, fail) => {
    child.stdout.once("data", line => done(line.toString().trim()));
    child.once("exit", code => fail(new Error(`the daemon ended with ${code}`)));
  });
  const token = readFileSync(options[0] ?? `${socket}.token`, "utf8").trim();
  return {url, token: {Authorization: `Bearer ${token}`}, stop: () => { child.stdin.end(); return ended }};
}

async function call({url, token}, method, params) {
  const body = JSON.stringify({jsonrpc: "2.0", id: 1, method, params});
  const headers = {"Content-Type": "application/json", ...token};
  const {result, error} = await (await fetch(`${url}/jsonrpc`, {method: "POST", headers, body})).json();
  assert.equal(error, undefined);
  return result;
}

// Starts one of the examples of functions. `firstLine` and `ended` are promises.
function started(t, name, ...options) {
  const child = program(t, name, options);
  const ended = new Promise(done => child.once("exit", done));
  const firstLine = new Promise(done => child.stdout.once("data", line => done(line.toString().trim())));
  return {firstLine, ended, stop: () => { child.stdin.end(); return ended }};
}

async function session(daemon, client) {
  const {protocol} = await (await fetch(`${daemon.url}/health`)).json();
  return {"Cotensor-Session": (await call(daemon, "session.hello", {protocol, client})).token};
}

async function put({url, token}, name, shape, kind, headers = {}) {
  const bytes = 4 * shape.reduce((product, dimension) => product * dimension, 1);
  const query = new URLSearchParams({dtype: "float32", shape: shape.join(","), kind});
  const target = `${url}/tensors/${encodeURIComponent(name)}?${query}`;
  const answer = await fetch(target, {method: "PUT", headers: {...token, ...headers}, body: new Uint8Array(bytes)});
  assert.equal(answer.status, 201, await answer.text());
}

// Opens the page. Collects errors of the page, and requests to other addresses, in `wrong`.
async function open(daemon, options = {}) {
  const {url} = daemon;
  const page = await browser.newPage({viewport: {width: 1280, height: 1000}, ...options});
  const wrong = [];
  page.on("pageerror", error => wrong.push(String(error)));
  page.on("console", message => message.type() === "error" && wrong.push(message.text()));
  page.on("request", request => request.url().startsWith(url) || /^(data|file):/.test(request.url()) || wrong.push(request.url()));
  // The same file as `cotensor dashboard` opens: it redirects the browser to the page.
  const {file} = await call(daemon, "http.dashboard", {});
  await page.goto(`file://${file}`);
  await page.waitForURL(`${url}/`);
  return {page, wrong};
}

// Colours of texts whose contrast with the background behind them is below 4.5, the least of WCAG 2.2 (AA) for small text.
const faint = page => page.evaluate(() => {
  const channels = colour => colour.match(/[\d.]+/g).map(Number);
  const linear = channel => channel <= 10.31475 ? channel / 255 / 12.92 : ((channel / 255 + 0.055) / 1.055) ** 2.4;
  const luminance = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const behind = element => {
    for (; element; element = element.parentElement) {
      const colour = channels(getComputedStyle(element).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    throw new Error("no background");
  };
  const texts = [...document.querySelectorAll("body *")].filter(element =>
    !["SCRIPT", "STYLE"].includes(element.tagName) && element.getClientRects().length &&
    [...element.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.textContent.trim()));
  const found = texts.map(element => {
    const style = getComputedStyle(element), colour = channels(element instanceof SVGElement ? style.fill : style.color);
    return {text: element.textContent, contrast: ratio(luminance(colour), luminance(behind(element)))};
  });
  for (const input of document.querySelectorAll("input[placeholder]")) if (input.getClientRects().length) {
    const colour = channels(getComputedStyle(input, "::placeholder").color);
    found.push({text: input.placeholder, contrast: ratio(luminance(colour), luminance(behind(input)))});
  }
  return {count: found.length, faint: found.filter(({contrast}) => contrast < 4.5)};
});

// Checks the page at both widths and in both schemes: no horizontal scrolling, enough contrast.
async function fits(daemon, name) {
  for (const colorScheme of ["light", "dark"]) for (const width of [1280, 390]) {
    const {page, wrong} = await open(daemon, {colorScheme, viewport: {width, height: 900}});
    await state(page, "live");
    await page.waitForFunction(() => document.querySelector("#chart .held")?.points.numberOfItems > 1);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    assert.ok(wide <= 0, `${name}: at ${width} pixels the page is ${wide} pixels wider than its window`);
    const cut = await page.locator(".scroll").evaluateAll(all => all.filter(part => part.scrollWidth > part.clientWidth).map(part => part.id));
    assert.deepEqual(cut, [], `${name}: tables that scroll horizontally at ${width} pixels`);
    const {count, faint: texts} = await faint(page);
    assert.ok(count > 30, `${count} texts`);
    assert.deepEqual(texts, [], `${name}: ${colorScheme}`);
    if (SCREENSHOTS) await page.screenshot({path: path.join(SCREENSHOTS, `${name}-${colorScheme}-${width}.png`), fullPage: true});
    assert.deepEqual(wrong, []);
    await page.close();
  }
}

const cell = (page, table, text) => page.locator(`#${table} tr`, {hasText: text});
const state = (page, text) => page.locator("#state", {hasText: text}).waitFor();

before(async () => {
  assert.ok(EXAMPLES, "EXAMPLES is the folder of the programs to start");
  browser = await chromium.launch({executablePath: CHROMIUM, args: ["--no-sandbox"]});
});
after(async () => {
  await browser?.close();
  rmSync(folder, {recursive: true, force: true});
});

test("page shows tensors, sessions, memory and copies, and follows changes", LIMIT, async t => {
  const live = await daemon(t, "live"), {url, token, stop} = live;
  const {page, wrong} = await open(live);
  await state(page, "live");
  await page.getByText("Nothing is published.").first().waitFor();

  const reader = await session(live, "reader");
  await session(live, "<b onclick=alert(1)>client</b>");
  const hostile = "<img src=x onerror=alert(1)>";
  await put(live, "bert/encoder/layer.0/weight", [768, 768], "weight", reader);
  await put(live, "image 17/embedding", [1, 512], "vision_embedding");
  await put(live, hostile, [4], "other");
  await cell(page, "tensors", "bert/encoder/layer.0/weight").filter({hasText: "reader[http]"}).filter({hasText: "2.3 MiB"}).waitFor();
  await cell(page, "tensors", "image 17/embedding").filter({hasText: "float32 [1, 512]"}).filter({hasText: "no holder"}).waitFor();
  await cell(page, "tensors", hostile).waitFor();
  await cell(page, "sessions", "<b onclick=alert(1)>client</b>").waitFor();
  assert.equal(await page.locator("img, td b").count(), 0);
  await cell(page, "sessions", "reader[http]").filter({hasText: "2.3 MiB"}).waitFor();
  await cell(page, "memory", "weight").filter({hasText: "cpu"}).waitFor();
  await cell(page, "memory", "vision_embedding").filter({hasText: "2.0 KiB"}).waitFor();
  await cell(page, "copies", "network").filter({hasText: "3"}).waitFor();
  assert.ok(await page.locator("#memory .bar i").first().evaluate(bar => bar.offsetWidth > 0));

  await fetch(`${url}/tensors/${encodeURIComponent("image 17/embedding")}`, {headers: token}).then(answer => answer.arrayBuffer());
  await page.locator(".figure", {hasText: "hits"}).filter({hasText: "1"}).first().waitFor();
  await page.fill("#filter", "image");
  await cell(page, "tensors", hostile).waitFor({state: "detached"});
  assert.equal(await cell(page, "tensors", "image 17/embedding").count(), 1);
  await page.fill("#filter", "");
  await cell(page, "tensors", hostile).waitFor();

  await fetch(`${url}/tensors/${encodeURIComponent(hostile)}`, {method: "DELETE", headers: token});
  await cell(page, "tensors", hostile).waitFor({state: "detached"});
  assert.deepEqual(wrong, []);

  const dark = await open(live, {colorScheme: "dark"});
  await state(dark.page, "live");
  assert.notEqual(await background(page), await background(dark.page));
  await fits(live, "tensors");

  await stop();
  await state(page, "no answer");
});

test("page shows tasks while a provider has tasks", LIMIT, async t => {
  const tasks = await daemon(t, "tasks"), {stop} = tasks;
  const {page, wrong} = await open(tasks);
  await page.getByText("No task is known.").waitFor();
  const provider = started(t, "provider", path.join(folder, "tasks"));
  assert.equal(await provider.firstLine, "ready");
  assert.equal(await started(t, "caller", path.join(folder, "tasks")).ended, 0);
  await cell(page, "tasks", "completed").filter({hasText: "wait"}).filter({hasText: /provider\[\d+\]/}).filter({hasText: /caller\[\d+\]/}).waitFor();
  await cell(page, "tasks", "cancelled").filter({hasText: "wait"}).waitFor();
  await cell(page, "sessions", "provider[").first().waitFor();
  await fits(tasks, "tasks");
  await cell(page, "functions", "wait").filter({hasText: "a task"}).filter({hasText: /provider\[\d+\]/}).waitFor();
  const ids = await page.locator("#tasks tbody td:first-child").allTextContents();
  assert.ok(ids.length >= 2 && ids.every(id => /^\d+$/.test(id)) && new Set(ids).size === ids.length, `${ids}`);
  assert.equal(await provider.stop(), 0);
  await page.getByText("No task is known.").waitFor();
  await page.getByText("No process offers functions.").waitFor();
  assert.deepEqual(wrong, []);
  await stop();
});

test("page begins with the savings, and sorts tensors by size", LIMIT, async t => {
  const saving = await daemon(t, "saving");
  const {page, wrong} = await open(saving);
  const names = () => page.locator("#tensors td.name").allTextContents();
  const savings = text => page.locator("#savings .figure").filter({hasText: text});
  await put(saving, "a/small", [1], "other");
  await put(saving, "b/large", [1024, 1024], "weight");
  await put(saving, "c/medium", [256, 1024], "weight");
  await cell(page, "tensors", "c/medium").waitFor();
  assert.deepEqual(await names(), ["b/large", "c/medium", "a/small"]);
  // Two holders of 4 MiB hold 8 MiB without sharing.
  for (const client of ["one", "two"]) {
    const headers = {...saving.token, ...await session(saving, client), "Content-Type": "application/json"};
    const body = JSON.stringify({jsonrpc: "2.0", id: 1, method: "tensor.get", params: {name: "b/large"}});
    const answer = await (await fetch(`${saving.url}/jsonrpc`, {method: "POST", headers, body})).json();
    assert.equal(answer.error, undefined);
  }
  await savings("saved by sharing").filter({hasText: "4.0 MiB"}).waitFor();
  await savings("without sharing").filter({hasText: "9.0 MiB"}).waitFor();
  await savings("held").filter({hasText: "5.0 MiB"}).waitFor();
  await savings("budget used").filter({hasText: "no budget"}).waitFor();
  await savings("hits").filter({hasText: "2"}).waitFor();
  assert.ok(await savings("saved by sharing").evaluate(saved => saved.getBoundingClientRect().top < 200), "the savings are at the top");

  await page.locator("#tensors th", {hasText: "Name"}).getByRole("button").click();
  await page.locator("#tensors th[aria-sort=ascending]", {hasText: "Name"}).waitFor();
  await page.waitForFunction(() => document.querySelector("#tensors td.name").textContent === "a/small");
  assert.deepEqual(await names(), ["a/small", "b/large", "c/medium"]);
  await page.locator("#tensors th", {hasText: "Size"}).getByRole("button").click();
  await page.waitForFunction(() => document.querySelector("#tensors td.name").textContent === "b/large");

  // The line grows with time, below the line of the bytes without sharing.
  await page.waitForFunction(() => document.querySelector("#chart .held").points.numberOfItems > 2);
  const last = await page.evaluate(() => [...document.querySelectorAll("#chart polyline")].map(({points}) => points.getItem(points.numberOfItems - 1)).map(({x, y}) => [x, y]));
  assert.ok(last[0][0] === last[1][0] && last[0][1] < last[1][1], `${last}`);
  assert.deepEqual(wrong, []);
  await fits(saving, "savings");
  await saving.stop();
});

test("page shows the budget, and models while the model process runs", LIMIT, async t => {
  const socket = path.join(folder, "models");
  const options = ["serve", "--socket", socket, "--listen", "127.0.0.1:0", "--max-memory", "64MiB", "--json"];
  const env = {...process.env, COTENSOR_ENGINE: "rten", COTENSOR_CACHE: path.join(folder, "cache")};
  const child = spawn(COTENSOR, options, {stdio: ["ignore", "pipe", "inherit"], env});
  t.after(() => child.kill("SIGTERM"));
  const ready = JSON.parse(await new Promise(done => child.stdout.once("data", line => done(line.toString()))));
  const token = {Authorization: `Bearer ${readFileSync(ready.token_file, "utf8").trim()}`};
  const models = {url: `http://${ready.http}`, token};
  const {page, wrong} = await open(models);
  await page.getByText("No model process runs").waitFor();
  await page.locator("#savings .figure", {hasText: "budget used"}).filter({hasText: "of 64.0 MiB"}).waitFor();
  const bert = path.resolve(import.meta.dirname, "../../fixtures/tiny/bert");
  const body = JSON.stringify({model: bert, input: ["gulls"]});
  const answer = await fetch(`${models.url}/v1/embeddings`, {method: "POST", headers: {...token, "Content-Type": "application/json"}, body});
  assert.equal(answer.status, 200, await answer.text());
  await cell(page, "models", "tiny/bert").filter({hasText: /\d+/}).waitFor();
  await cell(page, "model-functions", "model.run").waitFor();
  await page.getByText("No process offers functions.").waitFor();
  assert.deepEqual(wrong, []);
  await fits(models, "models");
});

const background = page => page.evaluate(() => getComputedStyle(document.body).backgroundColor);

test("page needs the token, typed or by a code for one use", LIMIT, async t => {
  const file = path.join(folder, "token");
  writeFileSync(file, `${TOKEN}\n`, {mode: 0o600});
  const locked = await daemon(t, "locked", file), {url, stop} = locked;
  await put(locked, "secret", [1], "other");
  const page = await browser.newPage();
  await page.goto(url);
  await state(page, "locked");
  assert.ok(!(await page.content()).includes("secret"));
  await page.fill("#token", "not-the-token-at-all");
  await page.keyboard.press("Enter");
  await state(page, "locked");
  await page.fill("#token", TOKEN);
  await page.keyboard.press("Enter");
  await state(page, "live");
  await cell(page, "tensors", "secret").waitFor();
  assert.ok(await page.locator("#locked").isHidden());

  const redirect = (await call(locked, "http.dashboard", {})).file;
  const code = readFileSync(redirect, "utf8").match(/code=([0-9a-f]{64})/)[0];
  const opened = await browser.newPage();
  await opened.goto(`file://${redirect}`);
  await state(opened, "live");
  assert.ok(!existsSync(redirect) && !opened.url().includes("code"));
  await opened.reload();
  await state(opened, "live");
  // Another browser that uses the same code.
  const late = await (await browser.newContext()).newPage();
  await late.goto(`${url}/?${code}`);
  await state(late, "locked");
  await stop();
});

// Tabs of one site in one Chromium: they share workers, locks and files.
import assert from "node:assert/strict";
import { chromium } from "playwright-core";
import { serve } from "./server.mjs";

const { CHROMIUM } = process.env;
const ARGS = ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--host-resolver-rules=MAP *.test 127.0.0.1"];

/** Starts Chromium. With a folder as `profile`, files and settings stay in it. */
export async function launch(profile) {
  assert.ok(CHROMIUM, "CHROMIUM names no browser; run `make test-web`");
  // Users' browsers keep pages for their history, which playwright turns off.
  const options = { executablePath: CHROMIUM, args: ARGS, ignoreDefaultArgs: ["--disable-back-forward-cache"] };
  if (profile !== undefined) {
    const context = await chromium.launchPersistentContext(profile, options);
    return { browser: context.browser(), context, close: () => context.close() };
  }
  const browser = await chromium.launch(options);
  return { browser, context: await browser.newContext(), close: () => browser.close() };
}

/** A server and a Chromium. `tab` opens a tab in which `store` is a client of the site's hub, connected with `options`. */
export async function openTabs() {
  const server = await serve();
  const { browser, context, close } = await launch();
  const blank = async (url = server.url) => {
    const page = await context.newPage();
    await page.goto(url);
    return page;
  };
  const tab = async (options = {}, url = server.url) => {
    const page = await blank(url);
    await page.evaluate(connect, options);
    return page;
  };
  const end = async () => {
    await close();
    server.close();
  };
  return { blank, browser, close: end, context, tab, url: server.url };
}

/** Connects a page, as `store`. */
export async function connect(options) {
  const { connectShared } = await import("/index.js");
  globalThis.store = await connectShared(options);
}

/** Ends the process of a page, as a crash does. */
export async function crash(page) {
  const crashed = page.waitForEvent("crash");
  const session = await page.context().newCDPSession(page);
  session.send("Page.crash").catch(() => undefined);
  await crashed;
}

/** The shared workers of a browser. */
export async function sharedWorkers(browser) {
  const session = await browser.newBrowserCDPSession();
  const { targetInfos } = await session.send("Target.getTargets");
  const workers = targetInfos.filter(({ type }) => type === "shared_worker");
  const kill = ({ targetId }) => session.send("Target.closeTarget", { targetId });
  return { workers, kill };
}

// Models whose weights the browser does not keep: in Chromium, with a small quota, and after the site's data were removed.
import assert from "node:assert/strict";
import { test } from "node:test";
import { openBrowser } from "./support/browsers.mjs";

/** Runs a model in the page, with the same cache each time. */
const classify = async () => {
  const { createBackend, createVitModel, WeightCache } = await import("cotensor");
  const { loadModels, newHasher } = await import("/models/core.js");
  await loadModels();
  globalThis.cache ??= await WeightCache.open({ newHasher });
  const backend = await createBackend("cpu", { models: "/models/", cache });
  const vit = createVitModel(backend, { modelId: "google/vit-base-patch16-224" });
  const image = await (await fetch("/fixtures/media/photo.png")).blob();
  const { answer } = await vit.process({ image });
  await backend.dispose();
  return { answer: answer.type, home: cache.home, reason: cache.reason, usage: await cache.usage() };
};

test("with a small quota a model runs from memory, and the cache says why", async () => {
  const site = await openBrowser("chromium");
  try {
    const session = await site.page.context().newCDPSession(site.page);
    const { usage } = await session.send("Storage.getUsageAndQuota", { origin: site.url });
    await session.send("Storage.overrideQuotaForOrigin", { origin: site.url, quotaSize: usage + 20_000 });
    const seen = await site.run(classify);
    assert.equal(seen.answer, "embedding");
    assert.match(seen.reason, /the browser refused more .* the site uses/);
  } finally {
    await site.close();
  }
});

test("after the site's data were removed, an open page runs models", async () => {
  const site = await openBrowser("chromium");
  try {
    const first = await site.run(classify);
    assert.deepEqual([first.answer, first.home, first.reason], ["embedding", "opfs", undefined]);
    const session = await site.page.context().newCDPSession(site.page);
    await session.send("Storage.clearDataForOrigin", { origin: site.url, storageTypes: "all" });
    const second = await site.run(classify);
    assert.deepEqual([second.answer, second.usage.blobs], ["embedding", 0]);
    assert.match(second.reason, /private files were removed/);
  } finally {
    await site.close();
  }
});

// A shared worker that downloads one file: the parameters `remote` and `name` of its URL.
import { openCache } from "./cache_page.js";

globalThis.onconnect = async ({ ports: [port] }) => {
  const { searchParams } = new URL(location.href);
  await openCache(searchParams.get("remote"));
  port.postMessage([cache.home, (await get(searchParams.get("name"))).fetchedBytes]);
};

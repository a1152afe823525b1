// The small models of fixtures/tiny, for tests in Node.
import { readdir, readFile } from "node:fs/promises";
import { relative } from "node:path";
import { fileURLToPath } from "node:url";
import { ConfigFiles, ModelFamily, openGraph } from "../../dist/models/core.js";

export const fixtures = new URL("../../../fixtures/", import.meta.url);

/** The folder of a model: its files, its family, its configuration. */
export async function openTiny(name, folder = `tiny/${name}`) {
  const root = new URL(`${folder}/`, fixtures);
  const path = fileURLToPath(root);
  const entries = await readdir(root, { recursive: true, withFileTypes: true });
  const names = entries.filter((entry) => entry.isFile()).map((entry) => relative(path, `${entry.parentPath ?? entry.path}/${entry.name}`));
  const bytes = async (file) => new Uint8Array(await readFile(new URL(file, root)));
  const text = (file) => readFile(new URL(file, root), "utf8");
  const files = new ConfigFiles();
  for (const file of names.filter((file) => file.endsWith(".json"))) files.set(file, await text(file));
  const family = names.includes("config.json") ? new ModelFamily(await text("config.json"), names) : undefined;
  const near = (file) => file.slice(0, file.lastIndexOf("/") + 1);
  const graph = async (file) => openGraph(file, await bytes(file), (location) => bytes(near(file) + location));
  return { name, names, files, family, bytes, text, graph, description: family && JSON.parse(family.describe()) };
}

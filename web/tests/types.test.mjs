// The published types in the versions of TypeScript that people use, with checks of the libraries and no more than the documented ones.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";

const web = fileURLToPath(new URL("../", import.meta.url));
const OPTIONS = { strict: true, noEmit: true, skipLibCheck: false, target: "es2022", lib: ["es2022", "dom"], types: [] };
const PROGRAM = `import { connectShared, createModel, createCpuBackend, setAddresses, SharedBackend, Store } from "cotensor";
export async function run(gpu: GPUDevice, image: HTMLImageElement): Promise<number> {
  setAddresses({ core: "/core.wasm" });
  const store = await connectShared({ webgpu: true });
  const shared = createModel(new SharedBackend(store), { modelId: "bert" });
  await shared.process(["one text", "another"]);
  const backend = await createCpuBackend({ store: await Store.create(), gpu });
  const { outputs } = await createModel(backend, { modelId: "vit" }).process({ image });
  return outputs.length;
}
`;
let folder;

before(async () => {
  folder = await mkdtemp(join(web, "node_modules/.types-"));
  await writeFile(join(folder, "program.ts"), PROGRAM);
  await writeFile(join(folder, "package.json"), '{"type": "module"}');
  await symlink(web, join(folder, "cotensor"));
});
after(() => rm(folder, { recursive: true, force: true }));

for (const name of ["typescript-5.7", "typescript-5.9", "typescript-6.0", "typescript"]) {
  test(`${name} compiles the types`, async () => {
    const { bin, version } = JSON.parse(await readFile(join(web, "node_modules", name, "package.json"), "utf8"));
    for (const [module, moduleResolution] of [["nodenext", "nodenext"], ["esnext", "bundler"]]) {
      const project = join(folder, `${name}.${module}.json`);
      const paths = { cotensor: [join(web, "dist/index.d.ts")] };
      await writeFile(project, JSON.stringify({ compilerOptions: { ...OPTIONS, module, moduleResolution, paths }, files: ["program.ts"] }));
      const compiler = join(web, "node_modules", name, typeof bin === "string" ? bin : bin.tsc);
      const errors = await new Promise((resolve) => execFile(process.execPath, [compiler, "-p", project], (error, output) => resolve(error ? output || String(error) : "")));
      assert.equal(errors, "", `TypeScript ${version}, ${module}`);
    }
  });
}

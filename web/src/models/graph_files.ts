// Which graphs a model has: as few questions to its server as its description allows.
import { ModelFamily, type Candidates } from "./core.js";
import type { FamilyDescription } from "./definition.js";
import type { ModelFolder } from "./folder.js";

/** Rounds of questions for the preferred files alone. Then all that may follow are asked for at once. */
const ROUNDS = 2;

/**
 * The files of a model's folder that its description names. A description of all files that may exist names the preferred ones; only
 * these are asked for, and those that are missing leave the list.
 */
export async function graphFiles(folder: ModelFolder, config: string, variant: string | undefined): Promise<string[]> {
  const present = async (files: readonly string[]): Promise<string[]> => {
    const found = await Promise.all(files.map(async (file) => ((await folder.has(file)) ? [file] : [])));
    return found.flat();
  };
  const { graphs, recognized_by } = JSON.parse(ModelFamily.candidates(config, variant)) as Candidates;
  const found = await present(recognized_by);
  /** Not known to be missing. */
  const possible = new Set(graphs);
  const wanted = (files: ReadonlySet<string>): string[] | undefined => named(config, [...found, ...files], variant)?.filter((file) => !found.includes(file));
  for (let round = 1; ; round += 1) {
    let files = wanted(possible);
    // The error lists all graphs.
    if (files === undefined) return [...found, ...(await present([...possible].filter((file) => !found.includes(file))))];
    if (files.length === 0) return found;
    if (round > ROUNDS) files = withFollowing(files, possible, wanted);
    const there = await present(files);
    found.push(...there);
    for (const file of files) if (!there.includes(file)) possible.delete(file);
  }
}

/** The graph of the whole model, which has the scale of similarities; null if the model has none. Opening a model does not need it. */
export async function wholeGraph(folder: ModelFolder, config: string, variant: string | undefined): Promise<string | null> {
  const { graphs, recognized_by } = JSON.parse(ModelFamily.candidates(config, variant)) as Candidates;
  const left = new Set([...graphs, ...recognized_by]);
  const next = (): string | null | undefined => described(config, [...left], variant)?.whole_graph;
  const all: string[] = [];
  for (let file = next(); file; file = next()) {
    all.push(file);
    left.delete(file);
  }
  for (const files of [all.slice(0, ROUNDS), all.slice(ROUNDS)]) {
    const there = await Promise.all(files.map((file) => folder.has(file)));
    const found = files.find((_, index) => there[index]);
    if (found !== undefined) return found;
  }
  return null;
}

/** The files that are wanted, and those that would be if they were missing. */
function withFollowing(files: readonly string[], possible: ReadonlySet<string>, wanted: (files: ReadonlySet<string>) => string[] | undefined): string[] {
  const left = new Set(possible);
  const all: string[] = [];
  for (let next: readonly string[] = files; next.length > 0; next = wanted(left) ?? []) {
    all.push(...next);
    for (const file of next) left.delete(file);
  }
  return all;
}

/** The graphs of stages that the description of these files names; nothing if there is none in the variant. */
function named(config: string, files: string[], variant: string | undefined): string[] | undefined {
  const description = described(config, files, variant);
  return description && [...new Set(description.stages.map(({ file }) => file))].filter((file) => file !== null);
}

function described(config: string, files: string[], variant: string | undefined): FamilyDescription | undefined {
  let definition;
  try {
    definition = new ModelFamily(config, files, variant);
  } catch {
    return undefined;
  }
  const description = JSON.parse(definition.describe()) as FamilyDescription;
  definition.free();
  return description;
}

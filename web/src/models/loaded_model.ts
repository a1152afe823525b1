// One model's files, processors and stages: one copy for all users of a backend.
import { CotensorError } from "../errors.js";
import type { SharedTensor } from "../shared_tensor.js";
import { Stage } from "../stage/stage.js";
import type { Tensor } from "../tensor.js";
import type { Kind } from "../types.js";
import { MissingBlob } from "../weights/cache.js";
import { hashes, keyOnce, loadModels, ModelFamily, type AnswerReader, type GraphFile, type StageGraph, type StageIdentity } from "./core.js";
import { LOGITS, type AnswerKind, type DecoderDef, type FamilyDescription, type StageDef, type Task } from "./definition.js";
import type { ModelFolder } from "./folder.js";
import { graphFiles, wholeGraph } from "./graph_files.js";
import { filesOf, importGraphs, type ImportedGraph, type Parts } from "./imported.js";
import type { ModelHost } from "./host.js";
import type { Medium, Tokens } from "./inputs.js";
import type { ModelOptions } from "./model.js";
import { Processors, type PreparedRun, type TextArrays } from "./processors.js";
import { logitScale, type LogitScale } from "./similarity.js";
import { ModelStage } from "./stages.js";

/** The answers that have labels. */
const LABELLED: readonly AnswerKind[] = ["label", "label-per-token", "objects"];
/** The name of a model's own head. */
const OWN_HEAD = "head";

/** A model that is open. Its graphs are loaded when they are first used. */
export class LoadedModel {
  readonly #stages = new Map<string, Promise<ModelStage>>();
  readonly #imports = new Map<string, Promise<Parts<ImportedGraph>>>();
  readonly #loadTimes = new Map<string, number>();
  /** The sizes of the weights in loaded graphs, by hash. */
  readonly #weights = new Map<string, number>();
  #logitScale: Promise<LogitScale> | undefined;
  #labels: Promise<string | undefined> | undefined;
  #isReleased = false;

  private constructor(
    readonly backend: ModelHost,
    readonly folder: ModelFolder,
    /** Its name in the backend. */
    readonly key: string,
    private readonly openDefinition: ModelFamily,
    private readonly description: FamilyDescription,
    private readonly openProcessors: Processors,
    private readonly wholeGraph: () => Promise<string | null>,
    private readonly isOptimized: boolean,
  ) {}

  /** Reads the small files of a model. */
  static async open(backend: ModelHost, folder: ModelFolder, key: string, { variant, useOptimizedOps = true }: ModelOptions): Promise<LoadedModel> {
    await loadModels();
    const config = await folder.text("config.json");
    if (config === undefined) throw new CotensorError("NotFound", `modelId: ${folder.url.href} has no config.json; check the name`);
    const definition = new ModelFamily(config, await graphFiles(folder, config, variant), variant);
    const description = JSON.parse(definition.describe()) as FamilyDescription;
    const processors = await Processors.open(definition, description, folder, config);
    return new LoadedModel(backend, folder, key, definition, description, processors, () => wholeGraph(folder, config, variant), useOptimizedOps);
  }

  /** Throws once the model was released: a caller may wait for a graph meanwhile. */
  check(): void {
    if (this.#isReleased) throw new CotensorError("Conflict", `${this.name}: the model was disposed; create it again`);
  }

  private get definition(): ModelFamily {
    this.check();
    return this.openDefinition;
  }

  /** What brings inputs into the form that the model reads. */
  get processors(): Processors {
    this.check();
    return this.openProcessors;
  }

  get name(): string {
    return this.folder.modelId;
  }

  get family(): string {
    return this.description.name;
  }

  get tasks(): readonly Task[] {
    return this.description.tasks;
  }

  get stageDefs(): readonly StageDef[] {
    return this.description.stages;
  }

  get decoder(): DecoderDef | null {
    return this.description.decoder;
  }

  /** Bytes of the weights in loaded graphs. */
  get weightBytes(): number {
    return [...this.#weights.values()].reduce((sum, bytes) => sum + bytes, 0);
  }

  isOfType(type: string): boolean {
    const { name, model_type, kinds } = this.description;
    return [name, model_type].includes(type) || kinds.some((kind) => kind === type || kind.split("_")[0] === type);
  }

  def(role: string): StageDef {
    const found = this.stageDefs.find((each) => each.role === role);
    if (found) return found;
    throw new CotensorError("NotFound", `${this.name}: it has no stage ${role}; its stages are ${this.stageDefs.map((each) => each.role).join(", ")}`);
  }

  task(name: string): Task {
    const found = this.tasks.find((each) => each.name === name);
    if (found) return found;
    throw new CotensorError("Invalid", `task: ${this.name} has no task ${JSON.stringify(name)}; its tasks are ${this.tasks.map((each) => each.name).join(", ")}`);
  }

  roles(task: Task): readonly string[] {
    return task.roles;
  }

  /** Refuses options that a task does not read, unknown ones, and values out of bounds. `user` is that of `userOf`. */
  checkOptions(user: string): void {
    this.definition.checkOptions(user);
  }

  /** The roles of a task that are graphs of the decoder. */
  decoderRoles({ roles }: Task): readonly string[] {
    const forms = this.decoder?.forms.flat() ?? [];
    return roles.filter((role) => forms.includes(role));
  }

  reads(task: Task, medium: Medium): boolean {
    return task.reads.includes(medium);
  }

  /** The task that reads exactly these inputs: that of the class in config.json, else the first that needs no head. `hasPairs`: texts to compare with a text. */
  defaultTask(media: readonly Medium[], hasPairs: boolean): Task {
    return this.task(this.definition.defaultTask(this.name, [...media], hasPairs));
  }

  /** Loads the stages of tasks, as far as the model has their files. */
  async load(tasks: readonly Task[]): Promise<void> {
    const embed = this.decoder?.embed;
    const all = tasks.flatMap((task) => [...task.roles, ...(embed && this.decoderRoles(task).length > 0 ? [embed] : [])]);
    const roles = [...new Set(all)].filter((role) => this.def(role).file !== null);
    if (roles.length === 0) throw this.#missing(this.def(tasks[0]?.roles[0] ?? this.stageDefs[0]?.role ?? ""));
    await Promise.all(roles.map((role) => this.stage(role)));
  }

  stage(role: string): Promise<ModelStage> {
    return this.#once(role, async () => this.#loadParts(role, this.def(role).kind, (await this.#imported(role)).stage));
  }

  /** The graph that gives the logits of a task: a file of its own, or what follows the encoder in the model's graph. */
  head(name: string | undefined, task: Task): Promise<ModelStage> {
    const head = name ?? OWN_HEAD;
    if (!/^[\w-][\w.-]*$/.test(head)) throw new CotensorError("Invalid", `head: ${JSON.stringify(head)} is not a plain file name`);
    return this.#once(`head ${head}`, async () => {
      const file = headFile(head);
      const trunk = this.def(task.roles.at(-1) ?? "");
      if (await this.folder.has(file)) {
        const { stage } = await this.#import(file, head, (graph) => ({ stage: [graph.head(head)], rest: [] }));
        return this.#loadParts(head, "other", stage);
      }
      if (name === undefined && trunk.file !== null) {
        const { rest } = await this.#imported(trunk.role);
        const after = rest.length > 0 ? rest : (await this.#import(trunk.file, "rest", (graph) => ({ stage: [], rest: this.#rest(graph, trunk.role) }))).rest;
        if (after.length > 0) return this.#loadParts(head, "other", after);
      }
      throw new CotensorError("NotFound", `head: ${this.name} has no head ${head} (${file}); ${task.name} needs one`);
    });
  }

  /** Whether a task without a named head uses the head in the model's graph. */
  async hasOwnHead(task: Task): Promise<boolean> {
    return task.head && !(await this.folder.has(headFile(OWN_HEAD)));
  }

  /** Refuses a task for which config.json states another class than the one of the head in the model's graph. */
  checkHead(task: Task): void {
    this.definition.checkHead(task.name);
  }

  /** The output of a stage that a task reads; without a task, the result of the stage. */
  outputOf({ role, outputs }: ModelStage, task?: Task, ownHead = false): string {
    return this.definition.outputOf(role, task?.name, outputs.map(({ name }) => name), ownHead);
  }

  /** The encoder of a stage, as 64 hexadecimal digits; its graph is imported, but not loaded. */
  async space(role: string): Promise<string> {
    return (await this.#imported(role)).stage.at(-1)?.description.space ?? "";
  }

  /** The stages that tensors of other models replace, by role. */
  async replacedBy(tensors: readonly SharedTensor[]): Promise<Map<string, SharedTensor>> {
    const replaced = new Map<string, SharedTensor>();
    for (const tensor of tensors) {
      const role = await this.#roleOf(tensor);
      if (replaced.has(role)) throw new CotensorError("Conflict", `two tensors replace the ${role} of ${this.name}`);
      replaced.set(role, tensor);
    }
    return replaced;
  }

  mediumOf(role: string): Medium {
    return this.def(role).media[0] ?? "text";
  }

  /** A tensor of another model in place of the result of a stage of equal space. */
  adapted(_def: StageDef, shared: SharedTensor, run: Pick<PreparedRun, "holder">): Tensor {
    return shared.lease().sameFor(run.holder);
  }

  /** Prepares the image or the sound of a run, once for equal files. */
  prepare(medium: "image" | "audio", run: PreparedRun): Promise<void> {
    return this.processors.prepare(medium, run);
  }

  encodeText(text: string, def: StageDef, task: Task, promptName: string | undefined): TextArrays {
    if (task.answer === "sentence") return this.processors.encodeSentence(text, promptName, def.fills_texts);
    return this.processors.encodeText(text, def.fills_texts);
  }

  tokens(text: string): Tokens {
    return this.processors.tokens(text);
  }

  get text(): Processors["text"] {
    return this.processors.text;
  }

  /** Whether a text has other numbers in a run with other texts. */
  async joinsRows(role: string): Promise<boolean> {
    return this.description.positions_depend_on_length || (await this.#imported(role)).stage.some(({ description }) => description.joins_rows !== null);
  }

  generation(task: string): ReturnType<Processors["generation"]> {
    return this.processors.generation(task);
  }

  /** Reads the answers of a task, with the files that they need. */
  async answers(task: Task): Promise<AnswerReader> {
    const labels = LABELLED.includes(task.answer) ? await this.#labelsFile() : undefined;
    const scale = task.answer === "similarity" ? await this.#scale() : undefined;
    return this.processors.answers(task, labels, scale);
  }

  #labelsFile(): Promise<string | undefined> {
    const reading = (this.#labels ??= this.folder.text("labels.json"));
    // The next call tries again.
    reading.catch(() => (this.#labels = undefined));
    return reading;
  }

  #scale(): Promise<LogitScale> {
    const reading = (this.#logitScale ??= logitScale(this.definition, this.description, this.wholeGraph, this.folder));
    // The next call tries again.
    reading.catch(() => (this.#logitScale = undefined));
    return reading;
  }

  keyOnce(stage: ModelStage, label: string, extra: readonly string[]): string {
    const { engine: [engine, version], precision, variant } = stage.graph;
    const identity: StageIdentity = { space: stage.space ?? "", engine, version, precision, variant };
    return keyOnce(JSON.stringify(identity), label, [...extra]);
  }

  /** Milliseconds since loading a stage, once. */
  takeLoadTime(role: string): number {
    const time = this.#loadTimes.get(role) ?? 0;
    this.#loadTimes.delete(role);
    return time;
  }

  /** Releases all graphs and processors. */
  async release(): Promise<void> {
    this.#isReleased = true;
    const stages = [...this.#stages.values()];
    this.#stages.clear();
    this.#weights.clear();
    for (const stage of stages) await (await stage.catch(() => undefined))?.release();
    this.openProcessors.free();
    this.openDefinition.free();
  }

  async #once(name: string, load: () => Promise<ModelStage>): Promise<ModelStage> {
    this.check();
    const known = this.#stages.get(name);
    if (known) return known;
    const start = performance.now();
    const again = (error: unknown): Promise<ModelStage> => {
      if (!(error instanceof MissingBlob)) throw error;
      this.#imports.clear();
      return load();
    };
    const loading = load().catch(again).then((stage) => {
      this.#loadTimes.set(stage.role, performance.now() - start);
      return stage;
    });
    this.#stages.set(name, loading);
    // The next call tries again.
    loading.catch(() => this.#stages.delete(name));
    return loading;
  }

  async #loadParts(role: string, kind: Kind, graphs: readonly ImportedGraph[]): Promise<ModelStage> {
    const stages: Stage[] = [];
    try {
      for (const imported of graphs) stages.push(await this.#loadPart(role, kind, imported, imported === graphs.at(-1)));
    } catch (error) {
      for (const { graph } of stages) await graph.release();
      throw error;
    }
    const [last, before] = [stages.at(-1), stages.at(-2)];
    if (!last) throw new CotensorError("Corrupt", `${this.name}: ${role} has no graph`);
    const input = graphs.at(-1)?.description.continues;
    return new ModelStage(last, before && input ? { stage: before, input } : undefined);
  }

  async #loadPart(role: string, kind: Kind, imported: ImportedGraph, isLast: boolean): Promise<Stage> {
    const { description } = imported;
    const graph = await this.backend.engine.load({
      files: () => filesOf(this.folder.cache, imported),
      key: imported.graph.hash,
      label: `${this.name} ${description.role}`,
      precision: description.precision,
      isOptimized: this.isOptimized,
    });
    const { computations } = this.backend;
    for (const { hash, bytes } of description.weights) this.#weights.set(hash, bytes);
    return new Stage({ role: isLast ? role : description.role, graph, kind: isLast ? kind : description.kind, space: description.space, computations, hashes });
  }

  /** The graphs of a stage; and of the head behind it, so that the file is not sent again for it. */
  #imported(role: string): Promise<Parts<ImportedGraph>> {
    const def = this.def(role);
    const { file } = def;
    if (file === null) throw this.#missing(def);
    const hasHead = this.tasks.some((task) => task.roles.at(-1) === role && task.has_head);
    const rest = (graph: GraphFile): StageGraph[] => {
      try {
        return hasHead ? this.#rest(graph, role) : [];
      } catch {
        // The stage works without it. A task that needs the head reports the error.
        return [];
      }
    };
    const fingerprints = def.media.map((medium) => this.processors.fingerprint(medium));
    const key = `stage ${role} ${hasHead ? "and head " : ""}${fingerprints.join(" ")}`;
    return this.#import(file, key, (graph) => ({ stage: graph.stages(this.definition, role, [...fingerprints]), rest: rest(graph) }));
  }

  /** What follows the encoder in the model's graph. */
  #rest(graph: GraphFile, role: string): StageGraph[] {
    return [graph.headAfter(this.definition, role, OWN_HEAD) ?? []].flat();
  }

  #import(file: string, key: string, parts: (graph: GraphFile) => Parts): Promise<Parts<ImportedGraph>> {
    const name = `${file} ${key}`;
    const known = this.#imports.get(name) ?? importGraphs(this.folder, file, key, parts, this.backend.progress);
    this.#imports.set(name, known);
    known.catch(() => this.#imports.delete(name));
    return known;
  }

  /** The stage whose result a tensor can replace: the one with the same space. */
  async #roleOf(tensor: SharedTensor): Promise<string> {
    if (tensor.space === undefined) throw new CotensorError("Invalid", `${tensor.name} has no space: no encoder of a model made it`);
    const candidates = this.stageDefs.filter(({ outputs, file, media, rest_of }) => outputs.length === 1 && outputs[0] !== LOGITS && file !== null && media.length > 0 && rest_of === null);
    const fitting = candidates.filter(({ media }) => media.some((medium) => MEDIA_OF[tensor.kind]?.includes(medium)));
    const spaces: string[] = [];
    for (const { role } of fitting) {
      const space = await this.space(role);
      if (space === tensor.space) return role;
      spaces.push(`${role} of ${this.name} has space ${space.slice(0, 12)}`);
    }
    if (spaces.length === 0) {
      const stages = this.stageDefs.map(({ role, kind }) => `${role} (${kind})`).join(", ");
      throw new CotensorError("Invalid", `${this.name} takes no tensor of kind ${tensor.kind} (space ${tensor.space.slice(0, 12)}); its stages: ${stages}`);
    }
    const message = `the tensor has space ${tensor.space.slice(0, 12)}, ${spaces.join(", ")}: their numbers mean different things`;
    throw new CotensorError("Invalid", `${message}; only an adapter between the two spaces can map one to the other`);
  }

  #missing({ role }: StageDef): CotensorError {
    return new CotensorError("NotFound", `${this.name}: the graph of ${role} is missing below ${this.folder.url.href}; export the model to ONNX`);
  }
}

function headFile(head: string): string {
  return `onnx/${head}.onnx`;
}

/** The inputs of encoders that make tensors of a kind. */
const MEDIA_OF: Partial<Record<Kind, readonly Medium[]>> = {
  text_embedding: ["text"],
  vision_embedding: ["image"],
  audio_embedding: ["audio"],
  vision_text_joint: ["image", "text"],
  audio_text_joint: ["audio", "text"],
};

// Shapes of inputs and outputs: what the inputs of a run say about its outputs.
import { CotensorError } from "../errors.js";
import type { Port } from "./api.js";

/** The most different input shapes whose output shapes a graph remembers. */
const LEARNED_MAX = 1000;

const show = (shape: readonly unknown[]): string => `[${shape.map((each) => each ?? "?").join(", ")}]`;

/** The shapes of one graph. */
export class Shapes {
  /** Shapes of outputs by the shapes of inputs, from earlier runs. */
  readonly #learned = new Map<string, ReadonlyMap<string, readonly number[]>>();
  /** Whether the graph computes the shapes that it declares. Exporters may name dimensions wrongly. */
  #trusted = true;

  constructor(
    readonly label: string,
    readonly inputs: readonly Port[],
  ) {}

  /** Checks the shapes of all inputs, and returns the value of each symbol. */
  bind(shapes: ReadonlyMap<string, readonly number[]>): Map<string, number> {
    const symbols = new Map<string, number>();
    for (const { name, shape: declared } of this.inputs) {
      const shape = shapes.get(name) ?? [];
      const wrong = (why: string): never => {
        throw new CotensorError("Invalid", `${this.label}: input ${name} has shape ${show(shape)}, the graph reads ${show(declared)}: ${why}`);
      };
      if (shape.length !== declared.length) wrong(`${declared.length} dimensions are required`);
      declared.forEach((dimension, axis) => {
        const length = shape[axis] ?? 0;
        if (typeof dimension === "number" && dimension !== length) wrong(`dimension ${axis} is ${dimension}`);
        if (typeof dimension !== "string") return;
        const known = symbols.get(dimension) ?? length;
        if (known !== length && this.#trusted) wrong(`${dimension} is ${known} in another input`);
        symbols.set(dimension, known);
      });
    }
    return symbols;
  }

  /** The shape that an output will have, if the inputs or an earlier run tell it. */
  ofOutput(output: Port, symbols: ReadonlyMap<string, number>, signature: string): readonly number[] | undefined {
    const learned = this.#learned.get(signature)?.get(output.name);
    if (learned || !this.#trusted) return learned;
    const shape = output.shape.map((dimension) => (typeof dimension === "string" ? symbols.get(dimension) : dimension));
    return shape.every((dimension) => typeof dimension === "number") ? shape : undefined;
  }

  /** Names equal shapes of inputs. */
  static signature(shapes: ReadonlyMap<string, readonly number[]>): string {
    return [...shapes].sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, shape]) => `${name}:${shape.join("x")}`).join(" ");
  }

  /** Remembers the shape of an output. */
  learn(signature: string, output: string, shape: readonly number[]): void {
    const known = new Map(this.#learned.get(signature)).set(output, [...shape]);
    this.#learned.delete(signature);
    this.#learned.set(signature, known);
    const oldest = this.#learned.keys().next();
    if (this.#learned.size > LEARNED_MAX && !oldest.done) this.#learned.delete(oldest.value);
  }

  /** Uses shapes of earlier runs only. Whether that is a change. */
  distrust(): boolean {
    const changed = this.#trusted || this.#learned.size > 0;
    this.#trusted = false;
    this.#learned.clear();
    return changed;
  }
}

// The stages of a task that a decoder answers. The module has the loops over windows of sound and over tokens, and waits for what runs here.
import type { Input } from "../engine/api.js";
import { identity } from "../stage/keys.js";
import { hashes, runTask, takeArray, type ArrayHandle, type Decoding } from "./core.js";
import { Decoder, nextTurn } from "./decoder.js";
import { reads } from "./definition.js";
import type { Run } from "./run.js";

/** `PageHost` of `web/models/src/host.rs`, which calls what is public. A method that fails returns a rejected promise. */
export class TaskHost {
  /** The results of the encoders, which the decoder may read. */
  readonly #read: Input[] = [];

  constructor(private readonly owner: Run) {}

  /** Lets the events of this thread run. */
  async turn(): Promise<void> {
    await nextTurn();
    this.owner.call.signal?.throwIfAborted();
    this.owner.model.check();
  }

  /** Sets the features of a window of a sound. The results of the window before are released. */
  setPart(features: ArrayHandle): void {
    this.#read.length = 0;
    this.owner.release();
    this.owner.setValue("audio.features", takeArray(features));
  }

  /** Runs a stage, and gives the shape of its result. */
  async encode(role: string): Promise<Uint32Array> {
    const { owner } = this;
    const result = await owner.result(role);
    this.#read.push(result);
    // The tensor of another model stands for its text; the text of the call is not read.
    if (owner.isGiven(role) && reads(owner.model.def(role), "text")) owner.setTextLength(result.shape[1] ?? 0);
    return Uint32Array.from(result.shape);
  }

  /** The graphs of the decoder. */
  decoder(): Promise<Decoder> {
    const { owner } = this;
    return Decoder.open(owner, owner.model.decoderRoles(owner.task));
  }

  /** The tokens that the decoder writes. Equal decodings are computed once. */
  async decode(decoding: Decoding): Promise<Uint32Array> {
    const { task, model } = this.owner;
    try {
      const graphs = [...model.decoderRoles(task), ...(model.decoder?.embed ? [model.decoder.embed] : [])];
      const identities = this.#read.map((value) => identity(hashes, value));
      return await this.owner.once(graphs, task.name, [...identities, decoding.settingsHash(), decoding.promptHash()], async () => {
        const decoder = await this.decoder();
        try {
          return Uint32Array.from(await runTask<number[]>(decoding.run(decoder)));
        } finally {
          decoder.dispose();
        }
      });
    } finally {
      decoding.free();
    }
  }

  /** Gives the program a piece of the text. */
  async text(piece: string): Promise<void> {
    this.owner.give(piece);
  }

  notice(notice: string): void {
    this.owner.note(notice);
  }
}

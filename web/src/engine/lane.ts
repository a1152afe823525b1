/** Runs tasks one after the other, in the order in which they come. */
export class Lane {
  #last: Promise<unknown> = Promise.resolve();

  /** The result of `task`, once the tasks before it ended. */
  run<Result>(task: () => Promise<Result>): Promise<Result> {
    const result = this.#last.then(task);
    this.#last = result.catch(() => undefined);
    return result;
  }
}

/** Keyed by a class of the library, because a module may have several namespace objects. */
const lanes = new WeakMap<object, Lane>();

/**
 * The lane of an onnxruntime-web. Whatever creates, runs or releases a session of the same library in the same thread uses it:
 * concurrent calls hang the library or end the tab.
 */
export function ortLane(ort: { readonly InferenceSession: object }): Lane {
  const lane = lanes.get(ort.InferenceSession) ?? new Lane();
  lanes.set(ort.InferenceSession, lane);
  return lane;
}

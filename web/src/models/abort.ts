/** The result of `work`, unless the signal aborts the call first. The work itself goes on. */
export async function unlessAborted<Value>(signal: AbortSignal | undefined, work: () => Promise<Value>): Promise<Value> {
  if (!signal) return work();
  signal.throwIfAborted();
  let abort = (): void => undefined;
  const aborted = new Promise<never>((_resolve, reject) => {
    abort = () => reject(signal.reason as Error);
    signal.addEventListener("abort", abort);
  });
  try {
    return await Promise.race([work(), aborted]);
  } finally {
    signal.removeEventListener("abort", abort);
  }
}

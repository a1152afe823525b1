// The compiled programs of onnxruntime-web on a GPU, kept apart for each session.

/** The objects of each device that no session uses. */
const free = new WeakMap<GPUDevice, GPUDevice[]>();

/**
 * The same device as another object, which `giveBack` ends. onnxruntime-web keeps compiled programs for each object that it is given, and
 * some of their keys lack a part: a session would run a program of another graph. Buffers, the queue and errors are those of `gpu`.
 */
export function ownPrograms(gpu: GPUDevice): { readonly device: GPUDevice; giveBack(): void } {
  const unused = free.get(gpu) ?? [];
  free.set(gpu, unused);
  // The library drops the programs of an object with its last session, but keeps the object for good.
  const device = unused.pop() ?? sameDevice(gpu);
  return { device, giveBack: () => void unused.push(device) };
}

function sameDevice(gpu: GPUDevice): GPUDevice {
  return new Proxy(gpu, {
    // The browser's functions and properties want the device itself.
    get(target, name) {
      const value: unknown = Reflect.get(target, name, target);
      return typeof value === "function" ? (value.bind(target) as unknown) : value;
    },
    set: (target, name, value) => Reflect.set(target, name, value, target),
  });
}

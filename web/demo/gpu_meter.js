// Counts the bytes of GPU buffers that the page created and has not destroyed, those of the engine included.
let bytes = 0;
let peak = 0;
const sizes = new WeakMap();

/** Starts counting. Call it before the first device is made. */
export function watchGpu() {
  if (typeof GPUDevice === "undefined") return;
  const { createBuffer, destroy: destroyDevice } = GPUDevice.prototype;
  const { destroy } = GPUBuffer.prototype;
  const ofDevice = new WeakMap();
  const remove = (buffer) => {
    bytes -= sizes.get(buffer) ?? 0;
    sizes.delete(buffer);
  };
  GPUDevice.prototype.createBuffer = function (descriptor) {
    const buffer = createBuffer.call(this, descriptor);
    sizes.set(buffer, buffer.size);
    const all = ofDevice.get(this) ?? new Set();
    ofDevice.set(this, all.add(buffer));
    bytes += buffer.size;
    peak = Math.max(peak, bytes);
    return buffer;
  };
  GPUBuffer.prototype.destroy = function () {
    remove(this);
    return destroy.call(this);
  };
  GPUDevice.prototype.destroy = function () {
    for (const buffer of ofDevice.get(this) ?? []) remove(buffer);
    return destroyDevice.call(this);
  };
}

/** Bytes now. */
export const gpuBytes = () => bytes;

/** The most bytes since the last call. */
export function takePeak() {
  const highest = peak;
  peak = bytes;
  return highest;
}

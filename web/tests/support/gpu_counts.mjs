// Counts what a page does with a GPUDevice. Runs in browsers.

/** Wraps the device. `counts` are the calls since `reset`; `bytes` are those of all buffers that are not destroyed. */
export function countGpu(gpu) {
  const counts = {};
  const count = (name) => (counts[name] = (counts[name] ?? 0) + 1);
  const counted = { counts, bytes: 0, peak: 0, reset: () => Object.keys(counts).forEach((name) => delete counts[name]) };
  const createBuffer = gpu.createBuffer.bind(gpu);
  gpu.createBuffer = (descriptor) => {
    const buffer = createBuffer(descriptor);
    counted.bytes += descriptor.size;
    counted.peak = Math.max(counted.peak, counted.bytes);
    const destroy = buffer.destroy.bind(buffer);
    let isDestroyed = false;
    buffer.destroy = () => {
      if (!isDestroyed) counted.bytes -= descriptor.size;
      isDestroyed = true;
      destroy();
    };
    const mapAsync = buffer.mapAsync.bind(buffer);
    buffer.mapAsync = (...args) => (count("mapAsync"), mapAsync(...args));
    return buffer;
  };
  const { submit, writeBuffer } = gpu.queue;
  gpu.queue.submit = (...args) => (count("submit"), submit.apply(gpu.queue, args));
  // Numbers for shaders, such as shapes, are in uniform buffers. They are not copies of tensors.
  gpu.queue.writeBuffer = (buffer, ...args) => {
    count(buffer.usage & GPUBufferUsage.UNIFORM ? "writeUniform" : "writeBuffer");
    writeBuffer.call(gpu.queue, buffer, ...args);
  };
  const createCommandEncoder = gpu.createCommandEncoder.bind(gpu);
  gpu.createCommandEncoder = (...args) => {
    const encoder = createCommandEncoder(...args);
    const copy = encoder.copyBufferToBuffer.bind(encoder);
    encoder.copyBufferToBuffer = (...copied) => (count("copyBufferToBuffer"), copy(...copied));
    return encoder;
  };
  return counted;
}

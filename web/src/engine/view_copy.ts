// Parts of GPU buffers, copied on the GPU: onnxruntime-web reads buffers from their first byte.
import { bufferBytes } from "../memory/gpu.js";
import type { Tensor } from "../tensor.js";

/** WebGPU copies at multiples of this many bytes. */
const COPY_ALIGNMENT = 4;
/** More copies in one submission take longer than the way through the host. */
const RUNS_MAX = 4096;

/** Adjacent elements of a view. */
interface Run {
  /** From the first element of the view, in bytes. */
  readonly start: number;
  readonly bytes: number;
}

/** Whether a session reads the tensor where it is: from its buffer's first byte, with whole vectors to the end. */
export function isReadInPlace(tensor: Tensor): boolean {
  const { buffer, offset } = tensor.location();
  // GPUBufferUsage.STORAGE
  const usable = (buffer.usage & 0x80) !== 0 && buffer.size >= bufferBytes(tensor.byteLength);
  return tensor.isContiguous && offset === 0 && usable;
}

/** The runs of adjacent elements of a tensor, in order. Nothing if there are too many. */
function runs(tensor: Tensor): Run[] | undefined {
  const { shape, strides, byteLength } = tensor;
  const elementBytes = byteLength / shape.reduce((total, each) => total * each, 1);
  let length = 1;
  let axes = shape.length;
  // The last axes whose elements are adjacent.
  while (axes > 0 && (shape[axes - 1] === 1 || strides[axes - 1] === length)) {
    axes -= 1;
    length *= shape[axes] ?? 1;
  }
  let starts = [0];
  for (let axis = 0; axis < axes; axis += 1) {
    const [count, stride] = [shape[axis] ?? 1, (strides[axis] ?? 0) * elementBytes];
    if (starts.length * count > RUNS_MAX) return undefined;
    starts = starts.flatMap((start) => Array.from({ length: count }, (_, index) => start + index * stride));
  }
  return starts.map((start) => ({ start, bytes: length * elementBytes }));
}

/** Encodes the copy of a tensor with elements to the start of `target`. Whether the GPU can make it. */
export function copyOnGpu(encoder: () => GPUCommandEncoder, tensor: Tensor, target: GPUBuffer): boolean {
  const { buffer, offset } = tensor.location();
  // GPUBufferUsage.COPY_SRC
  if ((buffer.usage & 0x4) === 0) return false;
  const parts = runs(tensor);
  if (!parts) return false;
  const aligned = (bytes: number): boolean => bytes % COPY_ALIGNMENT === 0;
  const only = parts.length === 1 ? parts[0] : undefined;
  if (only) {
    // The end of one run may be rounded up: the bytes after it are unused.
    const bytes = Math.ceil(only.bytes / COPY_ALIGNMENT) * COPY_ALIGNMENT;
    if (!aligned(offset) || offset + bytes > buffer.size) return false;
    encoder().copyBufferToBuffer(buffer, offset, target, 0, bytes);
    return true;
  }
  if (!parts.every(({ start, bytes }) => aligned(offset + start) && aligned(bytes))) return false;
  parts.forEach(({ start, bytes }, index) => encoder().copyBufferToBuffer(buffer, offset + start, target, index * bytes, bytes));
  return true;
}

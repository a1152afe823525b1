import type { Description } from "./core.js";

/** The elements of a strided tensor, row-major. `span` has the bytes from the first element to the end of the last. */
export function gathered(span: Uint8Array<ArrayBuffer>, layout: Description): Uint8Array<ArrayBuffer> {
  const { shape, strides, element_bytes: size } = layout;
  const count = shape.reduce((total, each) => total * each, 1);
  const packed = new Uint8Array(count * size);
  const index = shape.map(() => 0);
  let source = 0;
  for (let target = 0; target < packed.byteLength; target += size) {
    packed.set(span.subarray(source * size, (source + 1) * size), target);
    for (let axis = shape.length - 1; axis >= 0; axis -= 1) {
      const [length = 1, stride = 0, position = 0] = [shape[axis], strides[axis], index[axis]];
      if (position + 1 < length) {
        index[axis] = position + 1;
        source += stride;
        break;
      }
      index[axis] = 0;
      source -= position * stride;
    }
  }
  return packed;
}

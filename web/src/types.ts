import { CotensorError } from "./errors.js";

/** The devices of a browser. */
export type Device = "cpu" | "webgpu" | "webnn";

/** The meaning of a tensor. */
export type Kind =
  | "text_embedding"
  | "vision_embedding"
  | "audio_embedding"
  | "vision_text_joint"
  | "audio_text_joint"
  | "weight"
  | "other";

/** An array of numbers. Types that JavaScript lacks are arrays of their bits; complex numbers are pairs. */
export type TypedArray =
  | Uint8Array<ArrayBuffer>
  | Int8Array<ArrayBuffer>
  | Uint16Array<ArrayBuffer>
  | Int16Array<ArrayBuffer>
  | Uint32Array<ArrayBuffer>
  | Int32Array<ArrayBuffer>
  | Float32Array<ArrayBuffer>
  | Float64Array<ArrayBuffer>
  | BigUint64Array<ArrayBuffer>
  | BigInt64Array<ArrayBuffer>;

const ARRAYS = {
  bool: Uint8Array,
  uint8: Uint8Array,
  int8: Int8Array,
  float8_e4m3fn: Uint8Array,
  float8_e5m2: Uint8Array,
  uint16: Uint16Array,
  int16: Int16Array,
  float16: Uint16Array,
  bfloat16: Uint16Array,
  uint32: Uint32Array,
  int32: Int32Array,
  float32: Float32Array,
  uint64: BigUint64Array,
  int64: BigInt64Array,
  float64: Float64Array,
  complex64: Float32Array,
  complex128: Float64Array,
} as const;

/** The types of elements. */
export type DType = keyof typeof ARRAYS;

/** The element type of each class of arrays, for arrays without a named one. */
const DTYPES: ReadonlyMap<string, DType> = new Map([
  ["Uint8Array", "uint8"],
  ["Uint8ClampedArray", "uint8"],
  ["Int8Array", "int8"],
  ["Uint16Array", "uint16"],
  ["Int16Array", "int16"],
  ["Float16Array", "float16"],
  ["Uint32Array", "uint32"],
  ["Int32Array", "int32"],
  ["Float32Array", "float32"],
  ["Float64Array", "float64"],
  ["BigUint64Array", "uint64"],
  ["BigInt64Array", "int64"],
]);

/** The element type of `array`. */
export function dtypeOf(array: ArrayBufferView): DType {
  const name = Object.prototype.toString.call(array).slice("[object ".length, -1);
  const dtype = DTYPES.get(name);
  if (!dtype) throw new CotensorError("Invalid", `dtype: a ${name} has no element type; pass one of the typed arrays`);
  return dtype;
}

/** The elements of `bytes`, without a copy. */
export function elements(dtype: DType, bytes: Uint8Array<ArrayBuffer>): TypedArray {
  const TypedArrayClass = ARRAYS[dtype];
  return new TypedArrayClass(bytes.buffer, bytes.byteOffset, bytes.byteLength / TypedArrayClass.BYTES_PER_ELEMENT);
}

/** The bytes of `array`, without a copy. */
export function bytesOf<Memory extends ArrayBufferLike>(array: ArrayBufferView<Memory>): Uint8Array<Memory> {
  return new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
}

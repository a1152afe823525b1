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

/**
 * An array of numbers. Types that JavaScript lacks are arrays of their bits; complex numbers are pairs. `float16` is a `Float16Array`
 * where the browser has this class; its type is that of the bits here, because TypeScript's library has it only from 5.8 on.
 */
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

/** The class of half-precision numbers, in browsers that have it; elsewhere an array of their bits. */
const HalfArray = (globalThis as { Float16Array?: typeof Uint16Array }).Float16Array ?? Uint16Array;

const ARRAYS = {
  bool: Uint8Array,
  uint8: Uint8Array,
  int8: Int8Array,
  float8_e4m3fn: Uint8Array,
  float8_e5m2: Uint8Array,
  uint16: Uint16Array,
  int16: Int16Array,
  float16: HalfArray,
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

/** The name of an array's class, also of an array of another frame. */
const classOf = (array: ArrayBufferView): string => Object.prototype.toString.call(array).slice("[object ".length, -1);

/** The element type of `array`. */
export function dtypeOf(array: ArrayBufferView): DType {
  const name = classOf(array);
  const dtype = DTYPES.get(name);
  if (!dtype) throw new CotensorError("Invalid", `dtype: a ${name} has no element type; pass one of the typed arrays`);
  return dtype;
}

/** Checks that `array` has numbers of a type, or their bytes. */
export function checkElements(field: string, array: ArrayBufferView, dtype: DType): void {
  // An unknown type is an error of the store.
  if (!Object.hasOwn(ARRAYS, dtype)) return;
  const [name, wanted] = [classOf(array), ARRAYS[dtype].name];
  const isBits = name === "Uint16Array" && (dtype === "float16" || dtype === "bfloat16");
  if (isBits || [wanted, "Uint8Array", "DataView"].includes(name) || DTYPES.get(name) === dtype) return;
  throw new CotensorError("Invalid", `${field}: a ${name} has no ${dtype} numbers; pass a ${wanted}, or their bytes as a Uint8Array`);
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

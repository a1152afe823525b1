// Reads safetensors files, in Node and in browsers.
const ARRAYS = { F32: Float32Array, F16: Uint16Array, I64: BigInt64Array, I32: Int32Array, U8: Uint8Array, BOOL: Uint8Array };
const DTYPES = { F32: "float32", F16: "float16", I64: "int64", I32: "int32", U8: "uint8", BOOL: "bool" };

/** The tensors of a file by name: `{ dtype, shape, data }`. `bytes` is a Uint8Array. */
export function readSafetensors(bytes) {
  const length = Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets: [start, end] }] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    // A copy: the data may begin at any byte.
    const part = bytes.slice(8 + length + start, 8 + length + end);
    tensors[name] = { dtype: DTYPES[dtype], shape, data: new ARRAYS[dtype](part.buffer) };
  }
  return tensors;
}

/** The largest difference of two arrays, over the standard deviation of the expected one. */
export function relativeError(actual, expected) {
  if (actual.length !== expected.length) throw new Error(`${actual.length} numbers, ${expected.length} expected`);
  const values = Array.from(expected, Number);
  const mean = values.reduce((total, each) => total + each, 0) / values.length;
  const deviation = Math.sqrt(values.reduce((total, each) => total + (each - mean) ** 2, 0) / values.length);
  const largest = values.reduce((most, each, index) => Math.max(most, Math.abs(Number(actual[index]) - each)), 0);
  return Number.isFinite(largest) && [...actual].every((each) => Number.isFinite(Number(each))) ? largest / deviation : Infinity;
}

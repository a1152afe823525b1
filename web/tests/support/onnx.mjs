// Writes small ONNX graphs for tests, in Node and in browsers. The numbers of fields are those of onnx.proto3.
const TYPES = { float32: 1, uint8: 2, int8: 3, uint16: 4, int32: 6, int64: 7, bool: 9, float16: 10 };

function varint(value) {
  const bytes = [];
  let rest = BigInt.asUintN(64, BigInt(value));
  for (; rest > 127n; rest >>= 7n) bytes.push(Number(rest & 127n) | 128);
  bytes.push(Number(rest));
  return bytes;
}
const bytesField = (field, bytes) => [...varint((field << 3) | 2), ...varint(bytes.length), ...bytes];
const text = (field, value) => bytesField(field, [...new TextEncoder().encode(value)]);
const integer = (field, value) => [...varint(field << 3), ...varint(value)];

function valueInfo(name, [dtype, shape]) {
  const dims = shape.flatMap((dim) => bytesField(1, typeof dim === "string" ? text(2, dim) : integer(1, dim)));
  return [...text(1, name), ...bytesField(2, bytesField(1, [...integer(1, TYPES[dtype]), ...bytesField(2, dims)]))];
}

function attribute(name, value) {
  // Type 2 is one integer, type 7 a list of them.
  const body = Array.isArray(value) ? [...value.flatMap((each) => integer(8, each)), ...integer(20, 7)] : [...integer(3, value), ...integer(20, 2)];
  return bytesField(5, [...text(1, name), ...body]);
}

function node({ op, inputs, outputs, attributes = {} }) {
  const names = [...inputs.flatMap((name) => text(1, name)), ...outputs.flatMap((name) => text(2, name))];
  return [...names, ...text(4, op), ...Object.entries(attributes).flatMap(([name, value]) => attribute(name, value))];
}

/**
 * A model. `inputs` and `outputs` map names to `[dtype, shape]`, where a dimension is a number or the name of a symbol;
 * `nodes` are `{ op, inputs, outputs, attributes }`; `weights` map names to `[dtype, shape, typed array]`.
 */
export function onnxModel({ inputs, outputs, nodes, weights = {} }) {
  const initializer = ([name, [dtype, shape, data]]) => {
    const raw = [...new Uint8Array(data.buffer, data.byteOffset, data.byteLength)];
    return bytesField(5, [...shape.flatMap((dim) => integer(1, dim)), ...integer(2, TYPES[dtype]), ...text(8, name), ...bytesField(9, raw)]);
  };
  const graph = [
    ...nodes.flatMap((each) => bytesField(1, node(each))),
    ...text(2, "test"),
    ...Object.entries(weights).flatMap(initializer),
    ...Object.entries(inputs).flatMap(([name, type]) => bytesField(11, valueInfo(name, type))),
    ...Object.entries(outputs).flatMap(([name, type]) => bytesField(12, valueInfo(name, type))),
  ];
  return new Uint8Array([...integer(1, 9), ...bytesField(7, graph), ...bytesField(8, integer(2, 18))]);
}

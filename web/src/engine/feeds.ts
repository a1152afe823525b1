// The inputs of one run, as tensors of onnxruntime-web.
import { CotensorError } from "../errors.js";
import type { MlStorage } from "../memory/webnn.js";
import type { Reservation } from "../reservation.js";
import type { CopyReason } from "../reports.js";
import type { Store } from "../store.js";
import { Tensor } from "../tensor.js";
import { bytesOf, checkElements, dtypeOf, elements, type Device, type DType, type TypedArray } from "../types.js";
import type { HostArray, Input, Port } from "./api.js";
import type { KnownOrt, OrtTensor } from "./ort.js";
import type { Target } from "./target.js";
import { copyOnGpu, isReadInPlace } from "./view_copy.js";

/**
 * Arrays of numbers, which the adapter brings to the GPU itself. onnxruntime-web would copy them to its heap first, which never
 * shrinks. Ids and masks stay on the host: onnxruntime-web computes shapes and indices there.
 */
const FLOATS: ReadonlySet<string> = new Set(["float32", "float16"]);

const READ_FOR_HOST = "input of a graph that runs on the host";
const READ_FOR_DEVICE = "input of a graph that runs on another device";
const READ_VIEW = "view that the device cannot copy, as an input";

/** An input that belongs to a port, checked. */
export interface Given {
  readonly port: Port;
  readonly shape: readonly number[];
  /** A lease of the run, or the program's array. */
  readonly value: Input;
}

const count = (shape: readonly number[]): number => shape.reduce((total, each) => total * each, 1);

/** Checks names, types and sizes of inputs, and leases their tensors until `release`. */
export function takeInputs(label: string, ports: readonly Port[], inputs: Readonly<Record<string, Input>>): Given[] {
  const known = ports.map(({ name }) => name);
  const unknown = Object.keys(inputs).find((name) => !known.includes(name));
  if (unknown !== undefined) throw new CotensorError("Invalid", `${label}: no input is named ${unknown}; the graph reads ${known.join(", ")}`);
  const given: Given[] = [];
  try {
    for (const port of ports) {
      const value = inputs[port.name];
      if (value === undefined) throw new CotensorError("Invalid", `${label}: input ${port.name} is missing; the graph reads ${known.join(", ")}`);
      const dtype = value instanceof Tensor ? value.dtype : (value.dtype ?? dtypeOf(value.data));
      if (dtype !== port.dtype) throw new CotensorError("Invalid", `${label}: input ${port.name} has ${dtype}, the graph reads ${port.dtype}`);
      if (value instanceof Tensor) {
        // A lease on the same elements: the program may release its own during the run.
        given.push({ port, shape: value.shape, value: value.sameFor(value.holder) });
      } else {
        given.push({ port, shape: [...value.shape], value: checkArray(label, port, value) });
      }
    }
    return given;
  } catch (error) {
    releaseInputs(given);
    throw error;
  }
}

/** Releases the leases of a run. */
export function releaseInputs(given: readonly Given[]): void {
  for (const { value } of given) if (value instanceof Tensor) value.dispose();
}

function checkArray(label: string, port: Port, array: HostArray): HostArray {
  checkElements(`${label}: input ${port.name}`, array.data, port.dtype);
  const bytes = array.data.byteLength;
  const wanted = count(array.shape) * elements(port.dtype, new Uint8Array(0)).BYTES_PER_ELEMENT;
  if (bytes !== wanted) {
    throw new CotensorError("Invalid", `${label}: input ${port.name} has ${bytes} bytes; ${port.dtype} of shape [${array.shape.join(", ")}] has ${wanted}`);
  }
  return { ...array, dtype: port.dtype };
}

/** Makes the feeds of one run. */
export class Feeds {
  readonly feeds: Record<string, OrtTensor> = {};
  /** Copies of inputs, which the budget counts. */
  readonly #copies: Reservation[] = [];
  #encoder: GPUCommandEncoder | undefined;
  #refused: Promise<string | undefined> | undefined;

  constructor(
    readonly ort: KnownOrt,
    readonly store: Store,
    readonly label: string,
    readonly target: Target,
  ) {}

  /** Where the graph runs. */
  get device(): Device {
    return this.target.device;
  }

  async add(given: readonly Given[]): Promise<void> {
    for (const each of given) this.feeds[each.port.name] = await this.#feed(each);
    const encoder = this.#encoder;
    this.#encoder = undefined;
    if (encoder) this.#refused = this.target.memory?.refusal(() => this.target.gpu?.queue.submit([encoder.finish()]));
  }

  /** Throws if the GPU refused the copies of inputs. */
  async check(): Promise<void> {
    const error = await this.#refused;
    if (error !== undefined) throw new CotensorError("Io", `${this.label}: the GPU refused to copy an input: ${error}`);
  }

  /** Frees the copies. */
  dispose(): void {
    for (const copy of this.#copies) copy.dispose();
  }

  async #feed(given: Given): Promise<OrtTensor> {
    const { value, shape, port } = given;
    // WebGPU binds no empty buffers.
    if (count(shape) === 0) return this.#onHost(port.dtype, elements(port.dtype, new Uint8Array(0)), shape);
    if (value instanceof Tensor && value.device === this.device && this.target.dtypes.has(port.dtype)) {
      if (this.device === "webgpu") return this.#gpuTensor(given, value);
      if (this.device === "webnn" && value.isWhole) {
        const mlTensor = await value.location<MlStorage>().buffer.ready;
        return this.ort.Tensor.fromMLTensor(mlTensor, { dataType: port.dtype, dims: [...shape] });
      }
    }
    const array = await this.#hostArray(given);
    if (this.device === "webgpu" && FLOATS.has(port.dtype)) return this.#upload(given, array);
    // onnxruntime-web copies the array to its heap, and from there to a device that reads it.
    if (this.device === "cpu" || FLOATS.has(port.dtype)) this.#count(given, this.device === "cpu" ? "private copy" : "device transfer");
    return this.#onHost(port.dtype, array, shape);
  }

  async #gpuTensor(given: Given, tensor: Tensor): Promise<OrtTensor> {
    await this.target.memory?.checkReadable(tensor.location().buffer);
    if (isReadInPlace(tensor)) return this.#onGpu(given, tensor.location().buffer);
    const copy = this.#copy(given);
    const target = copy.storage();
    const encoder = (): GPUCommandEncoder => (this.#encoder ??= (this.target.gpu as GPUDevice).createCommandEncoder());
    if (copyOnGpu(encoder, tensor, target)) {
      this.#count(given, "private copy");
      return this.#onGpu(given, target);
    }
    copy.write(await tensor.read(READ_VIEW));
    return this.#onGpu(given, target);
  }

  /** The elements in host memory, without a copy if they are there. */
  async #hostArray({ value, port }: Given): Promise<TypedArray> {
    if (!(value instanceof Tensor)) return elements(port.dtype, bytesOf(value.data));
    if (value.device === "cpu") return value.isContiguous ? value.array() : value.read(READ_VIEW);
    return value.read(this.device === "cpu" ? READ_FOR_HOST : value.device === this.device ? READ_VIEW : READ_FOR_DEVICE);
  }

  #upload(given: Given, array: TypedArray): OrtTensor {
    const copy = this.#copy(given);
    copy.write(array);
    return this.#onGpu(given, copy.storage());
  }

  #copy({ port, shape, value }: Given): Reservation {
    const holder = value instanceof Tensor ? { holder: value.holder } : {};
    const options = { shape, dtype: port.dtype, device: "webgpu" as const, private: true, ...holder };
    const copy = this.store.reserve(`${this.label}/${port.name}`, options);
    this.#copies.push(copy);
    return copy;
  }

  #count({ value, shape, port }: Given, reason: CopyReason): void {
    const [name, bytes] = value instanceof Tensor ? [value.name, value.byteLength] : [`${this.label}/${port.name}`, value.data.byteLength];
    if (count(shape) > 0) this.store.countCopy(name, bytes, reason);
  }

  #onGpu({ port, shape }: Given, buffer: GPUBuffer): OrtTensor {
    return this.ort.Tensor.fromGpuBuffer(buffer, { dataType: port.dtype, dims: [...shape] });
  }

  #onHost(dtype: DType, array: TypedArray, shape: readonly number[]): OrtTensor {
    return new this.ort.Tensor(dtype, array, [...shape]);
  }
}

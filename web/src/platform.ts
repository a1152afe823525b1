// Names of the platform that the package's types use, and that the library of an older TypeScript lacks: WebGPU before 6.0, disposal
// without the library `esnext.disposable`. Where the library has them, nothing is added. `@webgpu/types` adds the members.
declare global {
  interface GPUDevice {}
  interface GPUBuffer {}
  interface GPUBufferBinding {}
  interface GPUCommandEncoder {}
  interface SymbolConstructor {
    readonly dispose: unique symbol;
    readonly asyncDispose: unique symbol;
  }
}

export {};

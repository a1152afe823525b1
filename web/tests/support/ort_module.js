// Takes the place of onnxruntime-web in tests of the worker.
export const env = { versions: { web: "test" } };

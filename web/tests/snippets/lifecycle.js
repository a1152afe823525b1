// The shared tensor is created and maintained by the original model
const sharedTensor = vitModel.getSharedTensor('vision_embedding');

// When using the shared tensor in another model, the reference count increases
clipModel.useSharedTensor(sharedTensor);  // Reference count: 2

// When a model is done with a shared tensor, it should release its reference
clipModel.releaseSharedTensor(sharedTensor);  // Reference count: 1

// When the original model is disposed, it releases its reference
await vitModel.dispose();  // Reference count: 0, tensor is freed

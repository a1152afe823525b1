# ruff: noqa: F704, F821 (a notebook awaits at the top level, too; the manifest sets the models)

# The shared tensor is created and maintained by the original model
sharedTensor = vitModel.getSharedTensor("vision_embedding")

# When using the shared tensor in another model, the reference count increases
clipModel.useSharedTensor(sharedTensor)  # Reference count: 2
assert sharedTensor.getReferenceCount() == 2

# When a model is done with a shared tensor, it should release its reference
clipModel.releaseSharedTensor(sharedTensor)  # Reference count: 1
assert sharedTensor.getReferenceCount() == 1

# When the original model is disposed, it releases its reference
await vitModel.dispose()  # Reference count: 0, tensor is freed
assert sharedTensor.getReferenceCount() == 0

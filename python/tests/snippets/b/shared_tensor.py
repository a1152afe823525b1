from cotensor.sharing import SharedTensor

tensor = SharedTensor(
    name="embedding",
    shape=[1, 768],
    dtype="float32",
    storage_type="webgpu",
    producer_model="bert",
)

# Reference counting
tensor.acquire("t5")  # Increment reference count
tensor.release("t5")  # Decrement reference count

# Create a view into the tensor
view = tensor.create_view(name="first_half", offset=[0, 0], size=[1, 384])

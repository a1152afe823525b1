from cotensor.client import SharedTensorClient

client = SharedTensorClient(server_port=2537)

# Create remote tensor
tensor = client.call_function("create_tensor", [(3, 4)], {"device": "cuda:0"})
print(f"Tensor shape: {tensor.shape}")

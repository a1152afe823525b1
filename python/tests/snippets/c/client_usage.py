from cotensor.client import SharedTensorClient

# Connect to server
client = SharedTensorClient(server_port=2537)

# Remote function call
result = client.call_function("add_numbers", [10, 20])
print(f"Result: {result}")  # Output: Result: 30

from cotensor.client import SharedTensorClient

client = SharedTensorClient(
    server_port=2537,  # Server port
    timeout=30,  # Request timeout
    retry_count=3,  # Retry count
    verbose_debug=False,  # Verbose debug info
)

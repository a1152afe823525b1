from cotensor.server import SharedTensorServer

server = SharedTensorServer(
    host="0.0.0.0",  # Listen address
    port=2537,  # Port number
    timeout=30,  # Request timeout
    max_workers=4,  # Maximum worker threads
    enable_cache=True,  # Enable result caching
    debug=False,  # Debug mode
)

from cotensor.async_client import AsyncSharedTensorClient
from cotensor.async_provider import AsyncSharedTensorProvider

# Async provider
async_provider = AsyncSharedTensorProvider()


@async_provider.share(name="async_computation")
def heavy_computation(data):
    # Simulate heavy computation
    import time

    time.sleep(2)
    return data * 2


# Async client
async_client = AsyncSharedTensorClient()

# Submit async task
task_id = async_client.submit_task("async_computation", [100])

# Check task status
status = async_client.get_task_status(task_id)
print(f"Task status: {status}")

# Get result
result = async_client.get_task_result(task_id)
print(f"Async result: {result}")

# ruff: noqa: F704 (a notebook awaits at the top level, too)

from cotensor.pool import ResourcePoolBridgeIntegration

# Create resource pool with tensor sharing
pool = ResourcePoolBridgeIntegration(max_connections=2)
manager = pool.setup_tensor_sharing(max_memory_mb=2048)

# Get models
model1 = await pool.get_model("text_embedding", "bert-base-uncased")
model2 = await pool.get_model("text_embedding", "t5-small")

# Run inference - second model will reuse compatible tensors
result1 = model1("Sample text")
result2 = model2("Sample text")  # Will reuse bert's embedding tensor if compatible

# Optimize memory when needed
optimization_result = manager.optimize_memory_usage()
print(f"Memory reduction: {optimization_result['memory_reduction_percent']}%")

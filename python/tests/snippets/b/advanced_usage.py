# ruff: noqa: F704 (a notebook awaits at the top level, too)

from pathlib import Path

from cotensor.pool import ResourcePoolBridgeIntegration

pool = ResourcePoolBridgeIntegration(max_connections=2)
image_data = Path("photo.png").read_bytes()

# Create tensor sharing manager with custom settings
manager = pool.setup_tensor_sharing(max_memory_mb=4096)

# Get first model and run inference
model1 = await pool.get_model("vision", "vit-base")
result1 = model1({"image": image_data})

# Explicitly share a tensor with other models
await pool.share_tensor_between_models(
    tensor_data=result1["output_tensors"]["vision_embedding"],
    tensor_name="vit_embedding",
    producer_model="vit-base",
    consumer_models=["clip-vit"],
    storage_type="webgpu",
)

# Get second model - will use the shared tensor
model2 = await pool.get_model("vision", "clip-vit")
result2 = model2({"image": image_data})

# ruff: noqa: F704 (a notebook awaits at the top level, too)

from cotensor.pool import ResourcePoolBridgeIntegration
from cotensor.ultra_low_precision import setup_ultra_low_precision

# Set up ultra-low precision config
ulp_config = setup_ultra_low_precision(
    model_name="llama-7b", model_type="text", precision_bits=2, mixed_precision=True, enable_kv_cache=True
)

# Create resource pool with tensor sharing
pool = ResourcePoolBridgeIntegration()
manager = pool.setup_tensor_sharing()

# Configure hardware preferences with ultra-low precision
hardware_preferences = {"priority_list": ["webgpu", "cpu"], "precision": 2, "mixed_precision": True}

# Get model with ultra-low precision
model = await pool.get_model(model_type="text", model_name="llama-7b", hardware_preferences=hardware_preferences)

# Run inference - tensors will be shared with 2-bit precision
result = model("Sample text")

# ruff: noqa: F821 (the manifest sets hardware)

from cotensor.models import createVitModel

# Configure which types of tensors can be shared
config = {
    "sharedTensorConfig": {
        "enableSharedTensors": True,
        "allowedTypes": ["vision_embedding", "text_embedding"],
        "maxSharedTensorSize": 100 * 1024 * 1024,  # 100MB max per tensor
    }
}

# Create models with this configuration
vitModel = createVitModel(hardware, {**config, "modelId": "google/vit-base-patch16-224"})

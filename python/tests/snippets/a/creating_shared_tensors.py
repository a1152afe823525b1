# ruff: noqa: F704, F821 (a notebook awaits at the top level, too; the manifest sets hardware and preprocessedImage)

from cotensor.models import createVitModel

# Create a ViT model
vitModel = createVitModel(hardware, {"modelId": "google/vit-base-patch16-224"})
await vitModel.initialize()

# Process an image
imageInput = {"imageData": preprocessedImage, "width": 224, "height": 224}
result = await vitModel.process(imageInput)

# Create a shared tensor from the vision embeddings
# (This happens automatically during vitModel.process())
sharedTensor = vitModel.getSharedTensor("vision_embedding")

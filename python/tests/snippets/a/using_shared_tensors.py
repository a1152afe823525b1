# ruff: noqa: F704, F821 (a notebook awaits at the top level, too; the manifest sets hardware and sharedTensor)

from cotensor.models import createClipModel

# Create a multimodal model that uses vision embeddings
clipModel = createClipModel(hardware, {"modelId": "openai/clip-vit-base-patch16", "useOptimizedOps": True})
await clipModel.initialize()

# Process text input
textInput = "a photo of a cat"
textTokens = await clipModel.tokenizeText(textInput)

# Run inference using the shared vision embedding
# This avoids reprocessing the image
result = await clipModel.processWithSharedEmbedding(textTokens, sharedTensor)

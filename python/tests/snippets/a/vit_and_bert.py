import asyncio
from math import prod

from cotensor.models import createBertModel, createVitModel, createWebGPUBackend


async def runMultimodalAnalysis(imageData, text):
    # Create hardware backend
    hardware = createWebGPUBackend()
    await hardware.initialize()

    # Create models
    vitModel = createVitModel(hardware, {"modelId": "google/vit-base-patch16-224", "useOptimizedOps": True})

    bertModel = createBertModel(hardware, {"modelId": "bert-base-uncased", "useOptimizedOps": True})

    # Initialize models
    await asyncio.gather(vitModel.initialize(), bertModel.initialize())

    try:
        # Process image with ViT
        vitInput = {"imageData": imageData, "width": 224, "height": 224}
        vitResult = await vitModel.process(vitInput)

        # Get shared vision embedding
        visionEmbedding = vitModel.getSharedTensor("vision_embedding")

        # Process text with BERT
        tokens = await bertModel.tokenize(text)
        bertResult = await bertModel.process(tokens)

        # In a real multimodal system, we would now combine the embeddings
        # For this example, we'll just return both results
        return {
            "visionResult": vitResult,
            "textResult": bertResult,
            # Memory saved by using shared tensor (estimated)
            "memorySaved": estimateMemorySaved(visionEmbedding),
        }
    finally:
        # Clean up resources
        await vitModel.dispose()
        await bertModel.dispose()


def estimateMemorySaved(sharedTensor):
    if not sharedTensor:
        return 0

    # Estimate memory saved in MB (assuming float32 values, 4 bytes each)
    tensorElements = prod(sharedTensor.tensor.dimensions)
    return (tensorElements * 4) / (1024 * 1024)

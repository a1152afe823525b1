# ruff: noqa: F704, F821 (a notebook awaits at the top level, too; the manifest sets the models and their inputs)

# Process image with ViT
vitResult = await vitModel.process(imageInput)
visionEmbedding = vitModel.getSharedTensor("vision_embedding")

# Process text with BERT
bertResult = await bertModel.process(textInput)
textEmbedding = bertModel.getSharedTensor("text_embedding")

# Use both embeddings in multimodal model
multimodalResult = await multimodalModel.processWithSharedEmbeddings(
    {"visionEmbedding": visionEmbedding, "textEmbedding": textEmbedding}
)

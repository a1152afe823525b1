// Process image with ViT
const vitResult = await vitModel.process(imageInput);
const visionEmbedding = vitModel.getSharedTensor('vision_embedding');

// Process text with BERT
const bertResult = await bertModel.process(textInput);
const textEmbedding = bertModel.getSharedTensor('text_embedding');

// Use both embeddings in multimodal model
const multimodalResult = await multimodalModel.processWithSharedEmbeddings({
  visionEmbedding,
  textEmbedding
});

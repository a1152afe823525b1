// Create a multimodal model that uses vision embeddings
const clipModel = createClipModel(hardware, {
  modelId: 'openai/clip-vit-base-patch16',
  useOptimizedOps: true
});
await clipModel.initialize();

// Process text input 
const textInput = "a photo of a cat";
const textTokens = await clipModel.tokenizeText(textInput);

// Run inference using the shared vision embedding
// This avoids reprocessing the image
const result = await clipModel.processWithSharedEmbedding(
  textTokens,
  sharedTensor
);

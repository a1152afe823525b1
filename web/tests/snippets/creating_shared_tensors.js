// Create a ViT model
const vitModel = createVitModel(hardware, {
  modelId: 'google/vit-base-patch16-224'
});
await vitModel.initialize();

// Process an image
const imageInput = {
  imageData: preprocessedImage,
  width: 224,
  height: 224
};
const result = await vitModel.process(imageInput);

// Create a shared tensor from the vision embeddings
// (This happens automatically during vitModel.process())
const sharedTensor = vitModel.getSharedTensor('vision_embedding');

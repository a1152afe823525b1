import { 
  createVitModel, 
  createBertModel,
  createWebGPUBackend 
} from 'cotensor';

async function runMultimodalAnalysis(imageData, text) {
  // Create hardware backend
  const hardware = await createWebGPUBackend();
  await hardware.initialize();
  
  // Create models
  const vitModel = createVitModel(hardware, {
    modelId: 'google/vit-base-patch16-224',
    useOptimizedOps: true
  });
  
  const bertModel = createBertModel(hardware, {
    modelId: 'bert-base-uncased',
    useOptimizedOps: true
  });
  
  // Initialize models
  await Promise.all([
    vitModel.initialize(),
    bertModel.initialize()
  ]);
  
  try {
    // Process image with ViT
    const vitInput = {
      imageData,
      width: 224,
      height: 224
    };
    const vitResult = await vitModel.process(vitInput);
    
    // Get shared vision embedding
    const visionEmbedding = vitModel.getSharedTensor('vision_embedding');
    
    // Process text with BERT
    const tokens = await bertModel.tokenize(text);
    const bertResult = await bertModel.process(tokens);
    
    // In a real multimodal system, we would now combine the embeddings
    // For this example, we'll just return both results
    return {
      visionResult: vitResult,
      textResult: bertResult,
      // Memory saved by using shared tensor (estimated)
      memorySaved: estimateMemorySaved(visionEmbedding)
    };
  } finally {
    // Clean up resources
    await vitModel.dispose();
    await bertModel.dispose();
  }
}

function estimateMemorySaved(sharedTensor) {
  if (!sharedTensor) return 0;
  
  // Estimate memory saved in MB (assuming float32 values, 4 bytes each)
  const tensorElements = sharedTensor.tensor.dimensions.reduce((a, b) => a * b, 1);
  return (tensorElements * 4) / (1024 * 1024);
}

// Configure which types of tensors can be shared
const config = {
  sharedTensorConfig: {
    enableSharedTensors: true,
    allowedTypes: ['vision_embedding', 'text_embedding'],
    maxSharedTensorSize: 100 * 1024 * 1024 // 100MB max per tensor
  }
};

// Create models with this configuration
const vitModel = createVitModel(hardware, {
  ...config,
  modelId: 'google/vit-base-patch16-224'
});

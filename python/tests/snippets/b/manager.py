from cotensor.sharing import TensorSharingManager

manager = TensorSharingManager(max_memory_mb=2048)

# Register a shared tensor
tensor = manager.register_shared_tensor(
    name="bert_embedding",
    shape=[1, 768],
    storage_type="webgpu",
    producer_model="bert",
    consumer_models=["t5", "llama"],
)

# Get a shared tensor
tensor = manager.get_shared_tensor("bert_embedding", "t5")

# Release tensors for a model
manager.release_model_tensors("bert")

# Optimize memory usage
result = manager.optimize_memory_usage()

import torch

import cotensor

print("✓ PyTorch integration working")
print(f"CUDA available: {torch.cuda.is_available()}")

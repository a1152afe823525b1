import cotensor

print("✓ Shared Tensor installed successfully")

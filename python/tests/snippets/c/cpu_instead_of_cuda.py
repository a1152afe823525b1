from basic_function_sharing import create_tensor

# Use CPU
tensor = create_tensor((3, 4), device="cpu")

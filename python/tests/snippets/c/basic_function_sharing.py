from cotensor.provider import SharedTensorProvider

# Create provider
provider = SharedTensorProvider()


# Share simple function
@provider.share(name="add_numbers")
def add_numbers(a, b):
    return a + b


# Share PyTorch function
@provider.share(name="create_tensor")
def create_tensor(shape, device="cpu"):
    import torch

    return torch.zeros(shape, device=device)

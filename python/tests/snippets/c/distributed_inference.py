import os

import torch

from cotensor.provider import SharedTensorProvider

# Support multi-GPU environment
gpu_rank = int(os.getenv("RANK", 0))
provider = SharedTensorProvider(server_port=2537 + gpu_rank)


@provider.share(name="distributed_inference")
def distributed_inference(model, data, device_id):
    device = f"cuda:{device_id}"
    model = model.to(device)
    data = data.to(device)

    with torch.no_grad():
        result = model(data)

    return result.cpu()

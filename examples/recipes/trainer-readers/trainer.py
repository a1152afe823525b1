"""Trains a model and publishes its weights after every step, until it is interrupted.

    python trainer.py CONFIG_FOLDER
"""

import sys

import torch
from transformers import AutoConfig, AutoModelForMaskedLM

import cotensor.torch


def training(folder):
    """Yields the model and its loss after every step."""
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(folder))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    while True:
        tokens = torch.randint(model.config.vocab_size, (2, 16))
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield model, loss.item()


if __name__ == "__main__":
    for model, loss in training(sys.argv[1]):
        # One copy into shared memory. All tensors become visible at once, as a new version. The next step changes the model only.
        published = cotensor.torch.publish(model, "policy", attach=False)
        print(f"step {published.version}: loss {loss}", flush=True)

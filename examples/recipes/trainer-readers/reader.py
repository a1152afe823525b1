"""Evaluates every version of the trainer's weights as soon as it is published, until it is interrupted.

    python reader.py CONFIG_FOLDER
"""

import sys

import torch
from transformers import AutoConfig, AutoModelForMaskedLM

import cotensor
import cotensor.torch


def evaluate(model):
    tokens = torch.arange(1, 17)[None] % model.config.vocab_size
    with torch.no_grad():
        return model(input_ids=tokens, labels=tokens).loss.item()


if __name__ == "__main__":
    with cotensor.torch.on_meta():
        model = AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(sys.argv[1])).eval()
    store = cotensor.connect()
    newest = None
    while True:
        # Waits for another version than this one. A reader that is slow skips the versions between.
        newest = store.wait("policy", after=newest)
        # The model then uses all tensors of that version, in shared memory, and keeps them until the next attach.
        cotensor.torch.attach(model, "policy", store, version=newest.version)
        print(f"version {newest.version}: loss {evaluate(model)}", flush=True)

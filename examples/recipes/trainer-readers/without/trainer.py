"""The same training, with a file for each step."""

import itertools
import os
import sys

import torch
from transformers import AutoConfig, AutoModelForMaskedLM


def training(folder):
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
    for step, (model, loss) in zip(itertools.count(1), training(sys.argv[1])):
        torch.save({"step": step, "model": model.state_dict()}, "policy.new")
        os.replace("policy.new", "policy.pt")
        print(f"step {step}: loss {loss}", flush=True)

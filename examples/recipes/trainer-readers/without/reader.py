"""The same reader, which loads each file that it finds."""

import os
import sys
import time

import torch
from transformers import AutoConfig, AutoModelForMaskedLM


def evaluate(model):
    tokens = torch.arange(1, 17)[None] % model.config.vocab_size
    with torch.no_grad():
        return model(input_ids=tokens, labels=tokens).loss.item()


if __name__ == "__main__":
    model = AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(sys.argv[1])).eval()
    changed = None
    while True:
        if not os.path.exists("policy.pt") or os.stat("policy.pt").st_mtime_ns == changed:
            time.sleep(0.02)
            continue
        changed = os.stat("policy.pt").st_mtime_ns
        state = torch.load("policy.pt", weights_only=True)
        model.load_state_dict(state["model"])
        print(f"version {state['step']}: loss {evaluate(model)}", flush=True)

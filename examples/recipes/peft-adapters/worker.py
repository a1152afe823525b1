"""Answers prompts, one on each line of the input, with an adapter of its own on the base model of this machine.

    python worker.py BASE ADAPTER
"""

import sys

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

import cotensor.torch

base_folder, adapter_folder = sys.argv[1:]
with cotensor.torch.shared_weights("base"):
    # The first process converts the weights and publishes them. All others map them.
    base = AutoModelForCausalLM.from_pretrained(base_folder, dtype=torch.float32)
# The adapter's own weights belong to this process. Do not merge them into the base: that would copy the base.
model = PeftModel.from_pretrained(base, adapter_folder).eval()
tokenizer = AutoTokenizer.from_pretrained(base_folder)

for prompt in sys.stdin:
    given = tokenizer(prompt.strip(), return_tensors="pt", return_token_type_ids=False)
    written = model.generate(**given, max_new_tokens=8, do_sample=False, pad_token_id=0)
    print(tokenizer.decode(written[0, given.input_ids.shape[1] :]), flush=True)

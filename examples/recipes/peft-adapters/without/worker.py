"""The same worker with a base model of its own."""

import sys

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base_folder, adapter_folder = sys.argv[1:]
base = AutoModelForCausalLM.from_pretrained(base_folder, dtype=torch.float32)
model = PeftModel.from_pretrained(base, adapter_folder).eval()
tokenizer = AutoTokenizer.from_pretrained(base_folder)

for prompt in sys.stdin:
    given = tokenizer(prompt.strip(), return_tensors="pt", return_token_type_ids=False)
    written = model.generate(**given, max_new_tokens=8, do_sample=False, pad_token_id=0)
    print(tokenizer.decode(written[0, given.input_ids.shape[1] :]), flush=True)

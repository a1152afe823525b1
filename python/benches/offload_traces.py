"""Flow on recorded traces of models of transformers and diffusers: python python/benches/offload_traces.py [FOLDER]

Each model has the size of its base variant and seeded weights, and runs on the CPU while its operations are recorded: one token
of decoding with a cache, one image, or one step of denoising. The least times of all passes on one thread, divided by 40, stand
for a device, 12 GB/s for its link. `cotensor plan` compares the strategies at 0.25, 0.5, 0.75 and 0.9 of the weights.

Prints for each budget: Flow's time over the bound max(C, (W - B) / bandwidth); over a larger bound with the terms of large
tensors and of their order, see `bound_us`; and over the best of the other strategies. The traces are kept in FOLDER, if it is
given.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any, Callable, Dict, List, Set

import torch
import transformers

from cotensor.tensorref import Recorder

BANDWIDTH = 12_000_000_000
SPEEDUP = 40
SHARES = (0.25, 0.5, 0.75, 0.9)
PASSES = 8
DEVICE_ONLY = "device only"
MIB = 1 << 20
TOKENS = {"max_new_tokens": PASSES, "min_new_tokens": PASSES, "do_sample": False}
IDS = torch.arange(2, 34)[None]


def llama() -> Callable[[], object]:
    config = transformers.LlamaConfig(
        hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12, vocab_size=32000,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    return lambda: model.generate(IDS, **TOKENS)


def gpt2() -> Callable[[], object]:
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    return lambda: model.generate(IDS, **TOKENS)


def t5() -> Callable[[], object]:
    config = transformers.T5Config(
        d_model=768, d_ff=3072, num_layers=12, num_decoder_layers=12, num_heads=12, decoder_start_token_id=0
    )
    model = transformers.T5ForConditionalGeneration(config)
    return lambda: model.generate(IDS, **TOKENS)


def whisper() -> Callable[[], object]:
    config = transformers.WhisperConfig(
        d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8,
        encoder_ffn_dim=2048, decoder_ffn_dim=2048, begin_suppress_tokens=None, suppress_tokens=None,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config)
    return lambda: model.generate(torch.randn(1, 80, 3000), **TOKENS)


def repeated(model: torch.nn.Module, *inputs: torch.Tensor) -> Callable[[], object]:
    return lambda: [model(*inputs) for _ in range(PASSES)]


def vit() -> Callable[[], object]:
    return repeated(transformers.ViTForImageClassification(transformers.ViTConfig()).eval(), torch.rand(1, 3, 224, 224))


def unet() -> Callable[[], object]:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(block_out_channels=(128, 256, 512, 512), cross_attention_dim=768, attention_head_dim=8)
    return repeated(model.eval(), torch.randn(1, 4, 32, 32), torch.tensor(10), torch.randn(1, 77, 768))


MODELS = {
    "ViT-base, one image": vit,
    "UNet of half the channels of Stable Diffusion 1.5, one step": unet,
    "T5-base, decoding": t5,
    "Llama, 12 layers of 768, decoding": llama,
    "GPT-2, decoding": gpt2,
    "Whisper-base, decoding": whisper,
}


def planned(path: str, budget: int) -> Dict[str, Any]:
    """The answer of `cotensor plan --json`; empty if an operation does not fit."""
    arguments = ["plan", path, "--budget", f"{budget}B", "--bandwidth", f"{BANDWIDTH}B/s", "--json"]
    ran = subprocess.run([sys.executable, "-m", "cotensor", *arguments], capture_output=True, text=True)
    if ran.returncode:
        assert "budget" in ran.stderr, ran.stderr
        return {}
    return json.loads(ran.stdout)  # type: ignore[no-any-return]


def bound_us(trace: Dict[str, Any], budget: int) -> float:
    """A larger bound than max(C, (W - B) / bandwidth), for operations on the device only.

    A tensor that does not fit beside an operation of others is copied in each period, and of the others, what does not fit beside
    that operation together. And while consecutive operations run, which take c and use w bytes, no more can be copied than these
    and what is on the device at their end, so a period takes at least c + (W - w - B) / bandwidth.
    """
    sizes: Dict[Any, int] = {tensor["id"]: tensor["size_bytes"] for tensor in trace["tensors"]}
    operations = trace["operations"]
    beside = [
        (set(one["uses"]), budget - one["workspace_bytes"] - sum(sizes[use] for use in set(one["uses"]))) for one in operations
    ]
    always = {key for key in sizes if any(key not in uses and sizes[key] > free for uses, free in beside)}
    rest = max(sum(sizes[key] for key in sizes if key not in always | uses) - free for uses, free in beside)
    found = [(sum(sizes[key] for key in always) + max(rest, 0)) * 1e6 / BANDWIDTH]
    for first in range(len(operations)):
        used: Set[Any] = set()
        took, left = 0.0, sum(sizes.values()) - budget
        for one in operations[first:] + operations[:first]:
            took += one["compute_us"]
            left -= sum(sizes[use] for use in set(one["uses"]) - used)
            used.update(one["uses"])
            found.append(took + max(left, 0) * 1e6 / BANDWIDTH)
    return max(found)


def without_host_times(trace: Dict[str, Any]) -> Dict[str, Any]:
    """The trace of a program whose operations run on the device only."""
    operations = [{key: value for key, value in one.items() if key != "cpu_us"} for one in trace["operations"]]
    return {**trace, "operations": operations}


def recorded(run: Callable[[], object]) -> Dict[str, Any]:
    """The trace of a run, with the least time of each operation, so that other load on the machine counts little."""
    with torch.no_grad(), Recorder(speedup=SPEEDUP) as recorder:
        run()
    trace = recorder.trace()
    length = len(trace["operations"])
    last = recorder.operations[-length * trace["periods"] :]
    for step, operation in enumerate(trace["operations"]):
        operation["cpu_us"] = min(same.elapsed_ns for same in last[step::length]) / 1000
        operation["compute_us"] = operation["cpu_us"] / SPEEDUP
    return trace


def main(folder: str) -> None:
    torch.set_num_threads(1)
    for name, make in MODELS.items():
        torch.manual_seed(0)
        whole = recorded(make())
        sizes: List[int] = [tensor["size_bytes"] for tensor in whole["tensors"]]
        print(f"{name}: {len(whole['operations'])} operations, {sum(sizes) / MIB:.0f} MiB, largest {max(sizes) / MIB:.0f} MiB")
        for kind, trace in ((DEVICE_ONLY, without_host_times(whole)), ("with the host", whole)):
            path = os.path.join(folder, f"{make.__name__}-{kind.replace(' ', '-')}.json")
            with open(path, "w") as file:
                json.dump(trace, file)
            for share in SHARES:
                budget = int(share * sum(sizes))
                answer = planned(path, budget)
                if not answer:
                    print(f"  {kind}, {share}: the largest operation does not fit")
                    continue
                times = {row["name"]: row["time_us"] for row in answer["strategies"]}
                flow = times.pop("flow")
                best = min(times, key=lambda name: times[name])
                text = f"  {kind}, {share}: {flow / 1000:.1f} ms, over the bound {flow / answer['bound_us']:.3f}, "
                if kind == DEVICE_ONLY:
                    text += f"over the larger one {flow / bound_us(trace, budget):.3f}, "
                print(f"{text}over {best} {flow / times[best]:.3f}", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(sys.argv[1] if len(sys.argv) > 1 else temporary)

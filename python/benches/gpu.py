"""Models larger than the memory that they may use on a GPU: python python/benches/gpu.py [--device DEVICE] [--scale SCALE]

For a Llama-shaped model and a UNet, at 0.25, 0.5 and 0.75 of their weights: the time of a pass with cotensor.tensorref (flow),
beside the bound max(C, (W - B) / bandwidth), and beside accelerate's cpu_offload and diffusers' group offloading (leaf and block
level, with streams) where they are installed. Outputs are compared with those of the model on the device.

Prints a line for each figure, and rewrites $OUT/gpu.json (./gpu.json without OUT) after each, so that a run that is stopped keeps
its figures. Ends after --minutes. Exit status: 0 all figures were taken, 1 some failed, 3 no device. `--device simulated --scale
0.1` tries the script on a machine without a GPU; its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import traceback
from typing import Any, Callable, Dict, List, Tuple

import torch

import cotensor.tensorref
import cotensor.torch

SHARES = (0.25, 0.5, 0.75)
WARM_UP, ROUNDS = 6, 7
MIB = 1 << 20
# Memory beside weights and activations, for fragments.
SPARE = 64 * MIB


def llama(scale: float) -> Tuple[torch.nn.Module, Tuple[Any, ...]]:
    """A decoder of about 2 GB in float16 at scale 1, and a prompt of 256 tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    width = max(int(2048 * scale) // 64 * 64, 64)
    config = LlamaConfig(
        hidden_size=width, intermediate_size=width * 11 // 4, num_hidden_layers=16, num_attention_heads=width // 64,
        num_key_value_heads=max(width // 256, 1), vocab_size=max(int(32000 * scale), 256), use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config), (torch.randint(0, config.vocab_size, (1, max(int(256 * scale), 8))),)


def unet(scale: float) -> Tuple[torch.nn.Module, Tuple[Any, ...]]:
    """The UNet of Stable Diffusion 1.5 at scale 1, 1.7 GB in float16, and latents of 64 by 64."""
    from diffusers import UNet2DConditionModel

    channels = tuple(max(int(width * scale) // 32 * 32, 32) for width in (320, 640, 1280, 1280))
    context = max(int(768 * scale), 32)
    model = UNet2DConditionModel(block_out_channels=channels, cross_attention_dim=context, attention_head_dim=8)
    side = max(int(64 * scale) // 8 * 8, 16)
    return model, (torch.randn(1, 4, side, side), torch.tensor(10), torch.randn(1, 77, context))


class Bench:
    """The figures that were taken, in a file."""

    def __init__(self, device: torch.device, minutes: float) -> None:
        self.device = device
        self.simulated = device.type == "simulated"
        self.dtype = torch.float32 if self.simulated else torch.float16
        self.ends = time.monotonic() + 60 * minutes
        self.file = os.path.join(os.environ.get("OUT") or ".", "gpu.json")
        self.figures: Dict[str, Any] = {"torch": torch.__version__, "device": self.name()}
        self.failed = False

    def name(self) -> str:
        return "simulated" if self.simulated else torch.cuda.get_device_name(self.device)

    def figure(self, name: str, value: Any, unit: str = "") -> None:
        print(f"{name}: {value:.3f} {unit}" if isinstance(value, float) else f"{name}: {value} {unit}", flush=True)
        self.figures[name] = value
        with open(self.file, "w") as file:
            json.dump(self.figures, file, indent=1)

    def synchronize(self) -> None:
        if not self.simulated:
            torch.cuda.synchronize(self.device)

    def attempt(self, name: str, measure: Callable[[], None]) -> None:
        """Takes some figures, unless the time is over. A failure is a figure, too."""
        if time.monotonic() > self.ends:
            self.figure(f"{name} left out", "the time is over")
            return
        try:
            measure()
        except ImportError as error:
            self.figure(f"{name} left out", str(error))
        except Exception as error:
            traceback.print_exc()
            self.failed = True
            self.figure(f"{name} failed", f"{type(error).__name__}: {error}")
        if not self.simulated:
            torch.cuda.empty_cache()

    def seconds(self, run: Callable[[], Any], warm_up: int) -> float:
        times: List[float] = []
        for number in range(warm_up + ROUNDS):
            self.synchronize()
            start = time.perf_counter()
            run()
            self.synchronize()
            if number >= warm_up:
                times.append(time.perf_counter() - start)
        return statistics.median(times)

    def bandwidth(self) -> float:
        """Bytes per second from pinned memory to the device."""
        if self.simulated:
            return 12e9
        source = torch.empty(256 * MIB, dtype=torch.uint8, pin_memory=True)
        target = torch.empty_like(source, device=self.device)
        return source.numel() / self.seconds(lambda: target.copy_(source, non_blocking=True), 2)

    def peak(self) -> int:
        return 0 if self.simulated else torch.cuda.max_memory_allocated(self.device)


def measure(bench: Bench, title: str, make: Callable[[float], Tuple[torch.nn.Module, Tuple[Any, ...]]], scale: float) -> None:
    torch.manual_seed(0)
    model, inputs = make(scale)
    model = model.eval().requires_grad_(False).to(bench.dtype)
    inputs = tuple(value.to(bench.dtype) if value.is_floating_point() else value for value in inputs)
    weights = sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in model.parameters()}.values())
    given = tuple(value.to(bench.device) for value in inputs)

    def run() -> torch.Tensor:
        with torch.inference_mode():
            return model(*given)[0]

    bandwidth = bench.bandwidth()
    bench.figure(f"{title}: bandwidth", bandwidth / 1e9, "GB/s")
    bench.figure(f"{title}: weights", weights / MIB, "MiB")
    if bench.simulated:
        with cotensor.tensorref.offload(model, bench.device, strategy="genoa"):
            expected, compute, activations = run().to("cpu"), bench.seconds(run, 1), 8 * MIB
    else:
        model.to(bench.device)
        expected = run().cpu()
        torch.cuda.reset_peak_memory_stats(bench.device)
        compute = bench.seconds(run, 2)
        activations = bench.peak() - weights + SPARE
        model.to("cpu")
    bench.figure(f"{title}: on the device", compute * 1e3, "ms")
    # From here on, the weights are those of the store, whose pages the driver can lock.
    store = cotensor.Store()
    cotensor.torch.publish(model, title, store)
    cotensor.torch.attach(model, title, store)

    def flow(share: float) -> None:
        budget = int(share * weights)
        bound = max(compute, (weights - budget) / bandwidth)
        with cotensor.tensorref.offload(model, bench.device, memory=budget + activations) as session:
            taken = bench.seconds(run, WARM_UP)
            difference = (run().to("cpu") - expected).abs().max().item() / expected.std().item()
            stats = session.stats()
        bench.figure(f"{title}: flow at {share}", taken * 1e3, "ms")
        bench.figure(f"{title}: flow at {share} over the bound", taken / bound)
        bench.figure(f"{title}: flow at {share}, largest difference over the deviation", difference)
        bench.figure(f"{title}: flow at {share}, counts", stats)

    for share in SHARES:
        bench.attempt(f"{title}: flow at {share}", lambda share=share: flow(share))  # type: ignore[misc]

    def accelerated() -> None:
        from accelerate import cpu_offload
        from accelerate.hooks import remove_hook_from_submodules

        cpu_offload(model, bench.device)
        try:
            bench.figure(f"{title}: accelerate cpu_offload", bench.seconds(run, 2) * 1e3, "ms")
        finally:
            remove_hook_from_submodules(model)

    def grouped(level: str) -> None:
        from diffusers.hooks import apply_group_offloading

        options = {"num_blocks_per_group": 1} if level == "block_level" else {}
        apply_group_offloading(
            model, onload_device=bench.device, offload_device=torch.device("cpu"), offload_type=level, use_stream=True, **options
        )
        bench.figure(f"{title}: diffusers group offloading, {level}", bench.seconds(run, 2) * 1e3, "ms")

    if bench.simulated:
        return
    bench.attempt(f"{title}: accelerate cpu_offload", accelerated)
    # Its hooks stay, so each level gets a model of its own.
    for level in ("leaf_level", "block_level"):
        torch.manual_seed(0)
        model = make(scale)[0].eval().requires_grad_(False).to(bench.dtype)
        bench.attempt(f"{title}: diffusers group offloading, {level}", lambda level=level: grouped(level))  # type: ignore[misc]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", type=float, default=1.0, help="width of the models, 1 for their real one")
    parser.add_argument("--minutes", type=float, default=8.0, help="when no further figure is begun")
    options = parser.parse_args()
    if options.device == "simulated":
        cotensor.tensorref.simulated_device()
    elif not torch.cuda.is_available():
        print("no GPU: torch.cuda.is_available() is false", file=sys.stderr)
        return 3
    bench = Bench(torch.device(options.device, 0), options.minutes)
    for title, make in (("Llama", llama), ("UNet", unet)):
        bench.attempt(title, lambda title=title, make=make: measure(bench, title, make, options.scale))  # type: ignore[misc]
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())

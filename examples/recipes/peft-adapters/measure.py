"""Starts workers with one adapter each, with a base model in each of them and with Cotensor, and prints the memory of both.

    python measure.py --processes 4 --model base
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, List, Tuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common.memory import Memory, measure, own_daemon  # noqa: E402
from common.models import TORCH_MODELS, causal_model, size_of  # noqa: E402
from common.report import arguments, report, run_variants  # noqa: E402

PROMPTS = ["the harbour wakes", "the crane lifts"]


def run(program: Path, environment: Dict[str, str], base: Path, adapters: List[Path]) -> Tuple[Memory, List[List[str]]]:
    """The memory of workers that have all answered, and the answers of each. `program` is the folder of worker.py."""
    command = [sys.executable, "worker.py", str(base)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen([*command, str(each)], cwd=program, env=environment, **pipes) for each in adapters]
    try:
        answers = []
        for worker in workers:
            answers.append([ask(worker, prompt) for prompt in PROMPTS])
        return measure([worker.pid for worker in workers], environment if program == HERE else None), answers
    finally:
        for worker in workers:
            worker.communicate(timeout=60)


def ask(worker: "subprocess.Popen[str]", prompt: str) -> str:
    assert worker.stdin and worker.stdout
    print(prompt, file=worker.stdin, flush=True)
    answer = worker.stdout.readline()
    if not answer:
        raise SystemExit("a worker ended; its message is above")
    return answer.rstrip("\n")


def make_adapters(base: Path, folder: Path, count: int) -> List[Path]:
    """Folders of LoRA adapters with seeded random weights, as training would leave them."""
    import warnings

    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    warnings.simplefilter("ignore", FutureWarning)
    made = []
    for number in range(count):
        torch.manual_seed(number)
        config = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
        made.append(folder / f"adapter-{number}")
        get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(made[-1])
    return made


def main() -> None:
    parser = arguments("Memory of workers with an adapter each, with and without Cotensor.", TORCH_MODELS)
    parser.add_argument("--adapters", nargs="+", type=Path, help="folders of adapters of this model (default: made)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made, own_daemon() as environment:
        base = causal_model(options.model, Path(made))
        given = options.adapters or make_adapters(base, Path(made), options.processes)
        adapters = [given[number % len(given)].absolute() for number in range(options.processes)]
        runs = run_variants(options, HERE, lambda program: run(program, environment, base, adapters))
        what = f"a Llama of {size_of(base)} MB in bfloat16, read as float32"
    report(options, HERE, what, runs)


if __name__ == "__main__":
    main()

"""Executes notebooks in kernels of their own, with a model in each of them and with Cotensor, and prints the memory of both.

    python measure.py --processes 4 --model base
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Dict, List, Tuple

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common.memory import Memory, measure, own_daemon, tree  # noqa: E402
from common.models import TORCH_MODELS, encoder, size_of  # noqa: E402
from common.report import arguments, report, run_variants  # noqa: E402

#: The longest run of a cell, in seconds.
CELL_SECONDS_MAX = 120


def run(folder: Path, environment: Dict[str, str], notebooks: int) -> Tuple[Memory, List[str]]:
    """The memory of all kernels after their last cells, and the value of each notebook's last cell."""
    with tempfile.TemporaryDirectory() as files, ExitStack() as kernels:
        pids: List[int] = []
        values = []
        for name in ["embed.ipynb"] + ["nearest.ipynb"] * (notebooks - 1):
            notebook = nbformat.read(folder / name, as_version=4)
            client = NotebookClient(notebook, timeout=CELL_SECONDS_MAX, resources={"metadata": {"path": files}})
            client.extra_arguments = ["--log-level=ERROR"]
            kernels.enter_context(client.setup_kernel(env=environment))
            for index, cell in enumerate(notebook.cells):
                client.execute_cell(cell, index)
            pids += tree(client.km.provisioner.pid)
            values.append(notebook.cells[-1].outputs[-1].data["text/plain"])
        return measure(pids, environment if folder == HERE else None), values


def main() -> None:
    options = arguments("Memory of the kernels of notebooks, with and without Cotensor.", TORCH_MODELS).parse_args()
    with tempfile.TemporaryDirectory() as made, own_daemon() as environment:
        model = encoder(options.model, Path(made))
        environment["MODEL"] = str(model)
        runs = run_variants(options, HERE, lambda folder: run(folder, environment, options.processes))
        what = f"a BERT of {size_of(model)} MB in float32, read as bfloat16"
    report(options, HERE, what, runs)


if __name__ == "__main__":
    main()

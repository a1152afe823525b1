"""Executes notebooks in kernels of their own, with a model in each of them and with Cotensor, and prints the memory of both.

    python measure.py --processes 4 --model base
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from contextlib import AsyncExitStack
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


async def run(folder: Path, environment: Dict[str, str], notebooks: int) -> Tuple[Memory, List[str]]:
    """The memory of all kernels after their last cells, and the value of each notebook's last cell."""
    with tempfile.TemporaryDirectory() as files:
        async with AsyncExitStack() as kernels:
            clients = []
            for name in ["embed.ipynb"] + ["nearest.ipynb"] * (notebooks - 1):
                notebook = nbformat.read(folder / name, as_version=4)
                client = NotebookClient(notebook, timeout=CELL_SECONDS_MAX, resources={"metadata": {"path": files}})
                client.extra_arguments = ["--log-level=ERROR"]
                await kernels.enter_async_context(client.async_setup_kernel(env=environment))
                clients.append(client)
            # All load the model at once. The last cell of embed.ipynb makes what those of nearest.ipynb read.
            await asyncio.gather(*(execute(client, slice(None, -1)) for client in clients))
            for client in clients:
                await execute(client, slice(-1, None))
            values = [client.nb.cells[-1].outputs[-1].data["text/plain"] for client in clients]
            pids = [pid for client in clients for pid in tree(client.km.provisioner.pid)]
            return measure(pids, environment if folder == HERE else None), values


async def execute(client: NotebookClient, cells: slice) -> None:
    """Executes some of a notebook's cells, in order."""
    for index in range(len(client.nb.cells))[cells]:
        await client.async_execute_cell(client.nb.cells[index], index)


def main() -> None:
    options = arguments("Memory of the kernels of notebooks, with and without Cotensor.", TORCH_MODELS).parse_args()
    with tempfile.TemporaryDirectory() as made, own_daemon() as environment:
        model = encoder(options.model, Path(made))
        environment["MODEL"] = str(model)
        runs = run_variants(options, HERE, lambda folder: asyncio.run(run(folder, environment, options.processes)))
        what = f"a BERT of {size_of(model)} MB in float32, read as bfloat16"
    report(options, HERE, what, runs)


if __name__ == "__main__":
    main()

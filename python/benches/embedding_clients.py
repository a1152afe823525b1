"""Programs and sessions of an MCP server that embed by the one model of the machine, beside as many with a model each.

    python benches/embedding_clients.py [--model FOLDER] [--programs N] [--sessions N] [--rounds N] [--texts N] [--json FILE]

Clients are Python programs, each with texts of its own, and sessions of the server in examples/recipes/mcp-embeddings, which
embed the same notes and then answer a question each. The daemon runs and has no model loaded when the clients start. Peers are
the same programs with a session of onnxruntime and a tokenizer: runs of at most 32 texts in the order of their lengths,
onnxruntime's default threads. Memory is the sum of the proportional set sizes of all clients, of the daemon and of its model
process, two seconds after all have answered, and the daemon's tensors that no process maps: by then the model process has
returned the memory of its last runs. The least memory is that of as many processes that only import numpy and, for sessions, mcp.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Awaitable, Dict, List, Optional, Tuple

from embedding_programs import (
    RECIPES,
    VARIANTS,
    Answer,
    engines,
    measure,
    own_daemon,
    own_environment,
    program,
    text,
    tree,
)
from mcp import Client, StdioServerParameters
from small_model import given_or_made

SERVERS = {"Cotensor": RECIPES / "mcp-embeddings", "onnxruntime": RECIPES / "mcp-embeddings" / "without"}
#: The bounds of issue 29, as ratios of Cotensor to onnxruntime.
BOUNDS = {
    "memory, bytes": 1 / 6,
    "all have answered, from the start": 0.9,
    "all have answered, models loaded": 0.9,
}
#: Programs that import what the clients of both variants import, and have no model.
IMPORTS = {"programs": "import numpy", "sessions": "import numpy\nfrom mcp.server import MCPServer"}
#: The wait before memory is measured, in seconds.
SETTLE_SECONDS = 2.0
#: Where the texts of a round begin.
ROUND_TEXTS = 1 << 16
#: The longest wait for an answer of a session, in seconds.
ANSWER_SECONDS_MAX = 600.0
#: The longest line of a program, in bytes.
LINE_MAX = 1 << 20

Figures = Dict[str, float]


class Programs:
    """Clients of one variant, which all run until the end of the block."""

    def __init__(self, variant: str, model: Path, environment: Dict[str, str]) -> None:
        self.variant, self.model, self.environment = variant, model, environment
        self.processes: List[asyncio.subprocess.Process] = []
        self.sessions: List[Client] = []
        self.closing = asyncio.Event()
        self.tasks: List["asyncio.Task[None]"] = []

    async def start_program(self) -> int:
        """Starts a Python program. Returns its position."""
        pipe = asyncio.subprocess.PIPE
        command = program(self.variant, self.model)
        process = await asyncio.create_subprocess_exec(*command, env=self.environment, stdin=pipe, stdout=pipe, limit=LINE_MAX)
        self.processes.append(process)
        return len(self.processes) - 1

    async def embed(self, at: int, texts: List[str]) -> Answer:
        process = self.processes[at]
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(texts).encode() + b"\n")
        await process.stdin.drain()
        return Answer.of((await process.stdout.readline()).decode())

    async def start_session(self, notes: Path) -> int:
        """Starts an MCP session. Returns its position."""
        environment = {**self.environment, "MODEL": str(self.model), "NOTES": str(notes)}
        server = StdioServerParameters(command=sys.executable, args=["server.py"], cwd=SERVERS[self.variant], env=environment)
        opened: "asyncio.Future[Client]" = asyncio.get_running_loop().create_future()

        async def keep() -> None:
            # The task that opens a session has to close it.
            try:
                async with Client(server, read_timeout_seconds=ANSWER_SECONDS_MAX) as client:
                    opened.set_result(client)
                    await self.closing.wait()
            except Exception as error:
                if opened.done():
                    raise
                opened.set_exception(error)

        self.tasks.append(asyncio.create_task(keep()))
        self.sessions.append(await opened)
        return len(self.sessions) - 1

    async def ask(self, at: int, question: str) -> str:
        result = await self.sessions[at].call_tool("search", {"question": question, "count": 1})
        assert not result.is_error, result
        found: str = result.structured_content["result"][0]
        return found

    def pids(self) -> List[int]:
        servers = [pid for pid in tree(os.getpid())[1:] if b"server.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(servers) == len(self.sessions)
        return [process.pid for process in self.processes] + servers

    async def close(self) -> None:
        self.closing.set()
        await asyncio.gather(*self.tasks)
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()


async def measured(
    variant: str, given: argparse.Namespace, notes: Path, first: int, cache: Path
) -> Tuple[Figures, List[Answer], List[str]]:
    """One round of a variant: its figures, and the answers."""
    programs, sessions = given.programs, given.sessions

    def texts(client: int, part: int) -> List[str]:
        begin = first + (client * 2 + part) * given.texts
        return [text(begin + at) for at in range(given.texts)]

    async def first_texts(clients: Programs, client: int) -> Answer:
        return await clients.embed(await clients.start_program(), texts(client, 0))

    async def first_question(clients: Programs, session: int) -> str:
        return await clients.ask(await clients.start_session(notes), f"where is question {session}")

    with ExitStack() as stack:
        is_ours = variant == "Cotensor"
        environment = stack.enter_context(own_daemon(cache)) if is_ours else own_environment()
        clients = Programs(variant, given.model, environment)
        figures: Figures = {}
        try:
            start = time.perf_counter()
            opened = asyncio.gather(*(first_question(clients, session) for session in range(sessions)))
            answers = list(await asyncio.gather(*(first_texts(clients, client) for client in range(programs))))
            found = list(await opened)
            figures["all have answered, from the start"] = time.perf_counter() - start
            start = time.perf_counter()
            embedded = asyncio.gather(*(clients.embed(at, texts(at, 1)) for at in range(programs)))
            asked: List[Awaitable[str]] = [clients.ask(at, f"who opens question {at}") for at in range(sessions)]
            found += await asyncio.gather(*asked)
            answers += await embedded
            figures["all have answered, models loaded"] = time.perf_counter() - start
            await asyncio.sleep(SETTLE_SECONDS)
            memory = measure(clients.pids(), environment if is_ours else None)
            figures |= {"memory, bytes": memory.total, "memory of the clients, bytes": memory.processes}
            if is_ours:
                figures["memory of the model process, bytes"] = memory.model_process
                figures["memory of the daemon, bytes"] = memory.daemon + memory.unmapped
        finally:
            await clients.close()
    return figures, answers, found


def least_memory(given: argparse.Namespace) -> int:
    """The memory of processes with the imports of the clients."""
    with ExitStack() as stack:
        pids = []
        for kind, imports in IMPORTS.items():
            for _ in range(getattr(given, kind)):
                code = f"{imports}\nimport sys\nprint(flush=True)\nsys.stdin.read()"
                command = [sys.executable, "-c", code]
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                stack.enter_context(process)
                assert process.stdin is not None and process.stdout is not None
                stack.callback(process.stdin.close)
                process.stdout.readline()
                pids.append(process.pid)
        return measure(pids).total


def run(given: argparse.Namespace, folder: Path) -> Dict[str, Figures]:
    """The medians of each variant over the rounds, which are interleaved."""
    with own_daemon(folder / "cache") as environment:
        # The first load writes the weights for the engine's kernels into the cache.
        import subprocess

        command = [sys.executable, "-m", "cotensor", "embed", str(given.model), "a text"]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        print(f"engine of the model process: {engines(environment)}", flush=True)
    least = least_memory(given)
    rounds: Dict[str, List[Figures]] = {variant: [] for variant in VARIANTS}
    for number in range(given.rounds):
        first = (number + 1) * ROUND_TEXTS
        notes = folder / f"notes{number}.txt"
        notes.write_text("\n".join(text(first + ROUND_TEXTS // 2 + at) for at in range(given.texts)))
        results = {variant: asyncio.run(measured(variant, given, notes, first, folder / "cache")) for variant in VARIANTS}
        for variant, (figures, _, _) in results.items():
            rounds[variant].append(figures)
        (_, ours, found), (_, theirs, expected) = results.values()
        for one, other in zip(ours, theirs):
            one.check(other)
        if found != expected:
            raise RuntimeError(f"the sessions of the variants find other notes: {found}, {expected}")
    medians = {
        variant: {name: statistics.median(each[name] for each in all_rounds) for name in all_rounds[0]}
        for variant, all_rounds in rounds.items()
    }
    return {**medians, "neither": {"memory of the imports, bytes": least}}


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder with onnx/model.onnx (default: the size of MiniLM, random weights)")
    parser.add_argument("--programs", type=int, default=8, metavar="N", help="Python programs (default: 8)")
    parser.add_argument("--sessions", type=int, default=8, metavar="N", help="MCP sessions (default: 8)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds (default: 3)")
    parser.add_argument(
        "--texts", type=int, default=64, metavar="N", help="texts of each program, twice, and notes (default: 64)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures to a file")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        given.model = given_or_made(given.model, Path(folder))
        figures = run(given, Path(folder))
    missed = 0
    for variant, each in figures.items():
        for name, figure in each.items():
            shown = f"{figure / (1 << 20):.0f} MiB" if name.endswith("bytes") else f"{figure:.2f} s"
            print(f"{variant:12} {name:45} {shown:>10}")
    for name, bound in BOUNDS.items():
        ratio = figures["Cotensor"][name] / figures["onnxruntime"][name]
        missed += ratio > bound
        print(f"{'met   ' if ratio <= bound else 'MISSED'} {name}: {ratio:.3f}, at most {bound:.3f}")
    if given.json:
        Path(given.json).write_text(json.dumps(figures, indent=2) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

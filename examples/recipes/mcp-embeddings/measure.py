"""Opens several sessions with the MCP server, with a model in each of them and with Cotensor, and prints the memory of both.

    python measure.py --processes 4 --model bert-base
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Dict, List, Tuple

from mcp import Client, StdioServerParameters

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common.memory import Memory, measure, own_daemon, tree  # noqa: E402
from common.models import EMBEDDING_MODELS, embedding_model  # noqa: E402
from common.report import arguments, report, run_variants  # noqa: E402

QUESTIONS = ["when does the ferry leave?", "where can I buy fuel?", "how much does the crane lift?"]
#: The longest wait for an answer, in seconds.
ANSWER_SECONDS_MAX = 120.0


async def run(program: Path, environment: Dict[str, str], sessions: int) -> Tuple[Memory, List[str]]:
    """The memory of the servers of all sessions, and the answers of the last one. `program` is the folder of server.py."""
    # As the configuration of an MCP client: its servers get these variables, and few others.
    server = StdioServerParameters(command=sys.executable, args=["server.py"], cwd=program, env=environment)
    async with AsyncExitStack() as opened:
        sessions_opened = [Client(server, read_timeout_seconds=ANSWER_SECONDS_MAX) for _ in range(sessions)]
        clients = [await opened.enter_async_context(each) for each in sessions_opened]
        answers = [[await ask(client, question) for question in QUESTIONS] for client in clients]
        assert all(each == answers[0] for each in answers), "the sessions do not agree"
        pids = [pid for pid in tree(os.getpid())[1:] if b"server.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(pids) == sessions, f"{len(pids)} servers run"
        return measure(pids, environment if program == HERE else None), answers[0]


async def ask(client: Client, question: str) -> str:
    """The note that the server finds first."""
    result = await client.call_tool("search", {"question": question, "count": 1})
    assert not result.is_error, result
    found: str = result.structured_content["result"][0]
    return found


def main() -> None:
    options = arguments("Memory of the servers of MCP sessions, with and without Cotensor.", EMBEDDING_MODELS).parse_args()
    with tempfile.TemporaryDirectory() as made, own_daemon() as environment:
        model = embedding_model(options.model, Path(made))
        environment["MODEL"] = str(model)
        environment["NOTES"] = str(HERE / "notes.txt")
        runs = run_variants(options, HERE, lambda program: asyncio.run(run(program, environment, options.processes)))
    report(options, HERE, options.model, runs)


if __name__ == "__main__":
    main()

"""Starts the web server with a model in each worker, and with Cotensor, and prints the memory of both.

    python measure.py --processes 4 --model bert-base
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common.memory import Memory, measure, own_daemon, tree  # noqa: E402
from common.models import EMBEDDING_MODELS, embedding_model  # noqa: E402
from common.report import arguments, report, run_variants  # noqa: E402

TEXTS = ["the harbour wakes before the city", "nets dry on the quay"]
#: The longest time until all workers have answered, in seconds.
START_SECONDS_MAX = 120.0


def run(app: Path, environment: Dict[str, str], workers: int, preload: bool) -> Tuple[Memory, List[List[float]]]:
    """The memory of a server whose workers have all answered, and the answer. `app` is the folder of app.py."""
    with tempfile.TemporaryDirectory(prefix="cot-") as named:
        address = f"{named}/http"
        command = [sys.executable, "-m", "gunicorn", "app:app", "--worker-class", "uvicorn_worker.UvicornWorker"]
        command += ["--workers", str(workers), "--bind", f"unix:{address}", "--log-level", "warning"]
        server = subprocess.Popen([*command, *(["--preload"] if preload else [])], cwd=app, env=environment)
        try:
            answer = ask_all(server, address, workers)
            return measure(tree(server.pid), environment if app == HERE else None), answer
        finally:
            server.terminate()
            server.wait(60)


def ask_all(server: "subprocess.Popen[bytes]", address: str, workers: int) -> List[List[float]]:
    """Asks until every worker has answered. Returns the answer, which is the same from all."""
    answers: Dict[int, Any] = {}
    deadline = time.monotonic() + START_SECONDS_MAX
    with ThreadPoolExecutor(2 * workers) as threads:
        while len(answers) < workers:
            for found in threads.map(ask, [address] * 2 * workers):
                if found is not None:
                    answers[found["worker"]] = found["embeddings"]
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{len(answers)} of {workers} workers answered; gunicorn's messages are above")
    first: List[List[float]] = next(iter(answers.values()))
    assert all(each == first for each in answers.values()), "the workers do not agree"
    return first


def ask(address: str) -> Optional[Dict[str, Any]]:
    """One request over a connection of its own; `None` while the server starts."""
    connection = http.client.HTTPConnection("localhost", timeout=START_SECONDS_MAX)
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.connect(address)
        connection.request("POST", "/embed", json.dumps({"input": TEXTS}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"the server answered {response.status}: {response.read().decode()}")
        found: Dict[str, Any] = json.loads(response.read())
        return found
    except (FileNotFoundError, ConnectionRefusedError):
        time.sleep(0.1)
        return None
    finally:
        connection.close()


def main() -> None:
    parser = arguments("Memory of the workers of a web server, with and without Cotensor.", EMBEDDING_MODELS)
    parser.add_argument("--preload", action="store_true", help="let gunicorn load the application before it forks the workers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made, own_daemon() as environment:
        model = embedding_model(options.model, Path(made))
        environment["MODEL"] = str(model)
        runs = run_variants(options, HERE, lambda app: run(app, environment, options.processes, options.preload and app == HERE))
    report(options, HERE, options.model, runs, close)


def close(rows: List[List[float]], others: List[List[float]]) -> bool:
    """Whether embeddings are the same but for rounding."""
    return all(abs(x - y) < 1e-4 for row, other in zip(rows, others) for x, y in zip(row, other))


if __name__ == "__main__":
    main()

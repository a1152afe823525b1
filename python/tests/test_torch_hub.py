"""The hub's cache, shared with ``huggingface_hub``: what one program downloaded, the other finds."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

pytest.importorskip("huggingface_hub")

from conftest import REPOSITORY  # noqa: E402
from functions_common import environment  # noqa: E402

NAME = "owner/tiny-bert"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
#: Files of this size and more have a SHA-256 in the list of files.
LARGE_BYTES_MIN = 4096
#: The files that Cotensor reads.
READ = ["*.json", "onnx/head*", "onnx/model.onnx*"]


def entry(path: str, content: bytes) -> Dict[str, Any]:
    git = hashlib.sha1(b"blob %d\0" % len(content) + content)
    found: Dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": git.hexdigest()}
    if len(content) >= LARGE_BYTES_MIN:
        found["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
    return found


class Hub(ThreadingHTTPServer):
    """A hub with the tiny BERT, on a loopback port."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        folder = REPOSITORY / "fixtures" / "tiny" / "bert"
        paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("reference")]
        self.files = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
        self.requests: List[str] = []

    @property
    def variables(self) -> Dict[str, str]:
        return {"HF_ENDPOINT": f"http://127.0.0.1:{self.server_port}", "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:  # noqa: N802
        self.answer(False)

    def do_GET(self) -> None:  # noqa: N802
        self.answer(True)

    def answer(self, has_body: bool) -> None:
        path = self.path.split("?")[0]
        self.server.requests.append(f"{self.command} {path}")
        headers = {"X-Repo-Commit": COMMIT}
        name = path.partition(f"/resolve/{COMMIT}/")[2]
        if path.endswith(("/revision/main", f"/revision/{COMMIT}")):
            body = json.dumps({"id": NAME, "sha": COMMIT}).encode()
        elif "/tree/" in path:
            body = json.dumps([entry(*each) for each in self.server.files.items()]).encode()
        elif name in self.server.files:
            body = self.server.files[name]
            listed = entry(name, body)
            headers["ETag"] = f'"{listed.get("lfs", listed)["oid"]}"'
        else:
            self.send_error(404)
            return
        self.send_response(200)
        for each in headers.items():
            self.send_header(*each)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if has_body:
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def run(command: List[str], hub: Hub, cache: Path, **variables: str) -> str:
    # The proxy of an environment is not for this server.
    caches = {"HF_HUB_CACHE": str(cache / "hub"), "COTENSOR_CACHE": str(cache / "weights")}
    env = environment(**{**hub.variables, **caches, "NO_PROXY": "127.0.0.1", **variables})
    ended = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def download(hub: Hub, cache: Path, **variables: str) -> Path:
    """The folder to which ``huggingface_hub`` downloads the files that Cotensor reads."""
    call = f"snapshot_download({NAME!r}, revision={COMMIT!r}, allow_patterns={READ!r})"
    return Path(run(["-c", f"import huggingface_hub as hub; print(hub.{call})"], hub, cache, **variables).strip())


def pull(hub: Hub, cache: Path) -> Dict[str, Any]:
    return json.loads(run(["-m", "cotensor", "pull", NAME, "--json"], hub, cache))


def requested_files(hub: Hub) -> List[str]:
    found, hub.requests = hub.requests, []
    return [request for request in found if request.startswith("GET") and "/resolve/" in request]


def test_huggingface_hub_finds_a_pulled_model(hub: Hub, tmp_path: Path) -> None:
    pulled = pull(hub, tmp_path)
    assert pulled["bytes_received"] == pulled["bytes"] and len(requested_files(hub)) == pulled["files"]
    assert download(hub, tmp_path) == Path(pulled["folder"])
    assert requested_files(hub) == []
    program = f"import huggingface_hub as hub; print(hub.snapshot_download({NAME!r}, allow_patterns={READ!r}))"
    assert run(["-c", program], hub, tmp_path, HF_HUB_OFFLINE="1").strip() == pulled["folder"]


def test_pull_finds_what_huggingface_hub_downloaded(hub: Hub, tmp_path: Path) -> None:
    folder = download(hub, tmp_path)
    assert requested_files(hub)
    pulled = pull(hub, tmp_path)
    assert (pulled["bytes_received"], Path(pulled["folder"])) == (0, folder)
    assert requested_files(hub) == []
    report = run(["-m", "cotensor", "run", NAME, "--text", "hello", "--json"], hub, tmp_path, HF_HUB_OFFLINE="1")
    assert json.loads(report)["users"][0]["model"] == NAME


def test_pool_takes_a_name(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cotensor.pool import ResourcePoolBridgeIntegration

    for name, value in {**hub.variables, "HF_HUB_CACHE": str(tmp_path / "hub")}.items():
        monkeypatch.setenv(name, value)
    pool = ResourcePoolBridgeIntegration(models=tmp_path)
    model = asyncio.run(pool.get_model("text_embedding", NAME))
    assert model("hello")["output_tensors"]["text_embedding"].numpy().ndim == 3
    assert requested_files(hub)

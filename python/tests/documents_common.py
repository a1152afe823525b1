"""The code blocks of the documents and the examples of `--help`, and the folders in which tests execute them.

documents.toml lists every block in the order of its document, with the way it is executed. A block that the list does not have
fails `test_documents.py`, so a new block cannot stay untried.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import wave
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional

import numpy
import pytest
from conftest import REPOSITORY, Daemon
from functions_common import environment, until

tomllib = pytest.importorskip("tomllib")

#: The documents whose blocks are executed: what a new user reads.
DOCUMENTS = ["README.md", "python/README.md", *sorted(f"docs/{path.name}" for path in (REPOSITORY / "docs").glob("*.md"))]
#: What one block may take, in seconds.
BLOCK_SECONDS_MAX = 300
_FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: Executes a file as the asyncio REPL and notebooks do: `await` may stand outside of functions.
_RUNNER = """
import ast, asyncio, inspect, sys
if __name__ == "__main__":
    with open(sys.argv[1]) as block:
        code = compile(block.read(), sys.argv[1], "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    waiting = eval(code, globals())
    if inspect.iscoroutine(waiting):
        asyncio.run(waiting)
"""
_INDENTED = re.compile(r"(?:^    \S.*\n(?:^(?:    .*)?\n)*)+", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A code block as it stands in a document."""

    document: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks(document: str) -> List[Block]:
    """The fenced and the indented code blocks of a document, in its order."""
    text = (REPOSITORY / document).read_text()
    found = []
    # Fenced text is blanked, so that indented lines in it are no blocks of their own.
    blank = _FENCED.sub(lambda match: re.sub(r"[^\n]", "", match[0]), text)
    for match in _FENCED.finditer(text):
        found.append(Block(document, text.count("\n", 0, match.start()) + 1, match[1].strip(), match[2]))
    for match in _INDENTED.finditer(blank):
        lines = (line[4:] for line in match[0].rstrip().splitlines())
        found.append(Block(document, blank.count("\n", 0, match.start()) + 1, "", "\n".join(lines) + "\n"))
    return sorted(found, key=lambda block: block.line)


def manifest() -> Dict[str, Any]:
    """documents.toml."""
    return tomllib.loads((Path(__file__).parent / "documents.toml").read_text())


def commands() -> List[str]:
    """The subcommands that `cotensor --help` lists."""
    text = _printed("--help").split("Commands:", 1)[1].split("Options:", 1)[0]
    return [match[1] for match in re.finditer(r"^  ([a-z-]+)", text, re.MULTILINE) if match[1] != "help"]


def examples(command: str) -> List[str]:
    """The lines below "Example:" or "Examples:" in a subcommand's `--help`."""
    _, _, after = _printed(command, "--help").partition("\nExample")
    lines = after.partition(":\n")[2].splitlines()
    return [line.strip() for line in lines if line.startswith("  ")]


def _printed(*arguments: str) -> str:
    command = [sys.executable, "-m", "cotensor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment(), timeout=60).stdout


class Scene:
    """A folder with the files that a document speaks of, a daemon, and the programs that its blocks start."""

    def __init__(self, folder: Path, serve: Optional[List[str]]) -> None:
        self.folder = folder
        self.daemon = Daemon(folder, *serve) if serve is not None else None
        scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = environment(
            PATH=scripts,
            HOME=str(folder),
            COTENSOR_SOCKET=str(folder / "s"),
            COTENSOR_CACHE=str(folder / "cache"),
            PYTHONPATH=str(folder),
        )
        #: Address and port of the daemon's HTTP; empty without.
        self.http = (self.daemon.says["http"] or "") if self.daemon is not None else ""
        self._running: List[subprocess.Popen[str]] = []

    def shell(self, text: str, where: object) -> str:
        """Executes shell commands, each of which has to succeed; what they print. What they leave in the background runs on
        until the scene ends."""
        return self._finish(["bash", "-euo", "pipefail", "-c", text], where)

    def python(self, text: str, where: object) -> str:
        """Executes a program to its end; what it prints."""
        (self.folder / "runner.py").write_text(_RUNNER)
        (self.folder / "block.py").write_text(text)
        return self._finish([sys.executable, "runner.py", "block.py"], where)

    def provider(self, text: str, function: str) -> None:
        """Starts a program that runs until the scene ends, and waits until it offers `function`."""
        (self.folder / "provider.py").write_text(text)
        self._start([sys.executable, "provider.py"], function)

    def server(self, text: str, function: str) -> None:
        """Starts a shell command that runs until the scene ends, and waits until it offers `function`."""
        self._start(["bash", "-c", text], function)

    def _start(self, command: List[str], function: str) -> None:
        log_file = self.folder / "provider.log"
        with open(log_file, "w") as log:
            running = subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=log, stderr=log, text=True, start_new_session=True
            )
        self._running.append(running)

        def offered() -> bool:
            assert running.poll() is None, log_file.read_text()
            listed = subprocess.run(
                [sys.executable, "-m", "cotensor", "call", "--list", function],
                capture_output=True,
                text=True,
                env=self.environment,
                timeout=60,
            )
            return function in listed.stdout

        until(offered)

    def _finish(self, command: List[str], where: object) -> str:
        with open(self.folder / "output", "w+") as output, open(self.folder / "errors", "w+") as errors:
            # Not pipes: what a block leaves in the background keeps its output open.
            running = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
            self._running.append(running)
            code = running.wait(BLOCK_SECONDS_MAX)
            output.seek(0)
            errors.seek(0)
            printed, complaint = output.read(), errors.read()
        assert code == 0, f"{where} ended with {code}:\n{printed}\n{complaint}"
        return printed

    def end(self) -> None:
        for running in reversed(self._running):
            try:
                os.killpg(running.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            running.wait()
        if self.daemon is not None:
            self.daemon.stop()


@contextmanager
def scene(files: List[str], serve: Optional[List[str]]) -> Iterator[Scene]:
    """A scene with these files, and with a daemon of these flags unless `serve` is None."""
    # Not pytest's folders: their names are too long for a socket's.
    with tempfile.TemporaryDirectory(prefix="cot-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for file in files:
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            FILES[file](path)
        made = Scene(folder, serve)
        try:
            yield made
        finally:
            made.end()


def _array(*shape: int) -> Callable[[Path], None]:
    return lambda path: numpy.save(path, numpy.ones(shape, numpy.float32))


def _safetensors(path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"classifier.weight": numpy.ones((2, 4), numpy.float32), "x": numpy.zeros(3, numpy.float32)}, path)


def _model(family: str) -> Callable[[Path], None]:
    def copy(path: Path) -> None:
        shutil.copytree(REPOSITORY / "fixtures" / "tiny" / family, path)
        head = path / "onnx" / "head.onnx"
        named = path / "onnx" / "head.classifier.onnx"
        if head.is_file() and not named.exists():
            # A head's weights may lie beside it, under the name that its graph has for them.
            shutil.copy(head, named)

    return copy


def _transformers(path: Path) -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=120)
    BertModel(config).save_pretrained(path)


def _sound(path: Path) -> None:
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16_000)
        sound.writeframes(b"\0\1" * 16_000)


_FUNCTIONS = """
from cotensor.provider import SharedTensorProvider
provider = SharedTensorProvider()
@provider.share(name="served")
def served(): return 1
"""


#: How the files that documents name are made, by their names.
FILES: Dict[str, Callable[[Path], None]] = {
    "query.npy": _array(16),
    "photo.npy": _array(8, 8, 3),
    "x.npy": _array(3),
    "noise.bin": lambda path: path.write_bytes(bytes(16 * 1024 * 4)) and None,
    "model.safetensors": _safetensors,
    "bert": _model("bert"),
    "models/clip-vit-base-patch16": _model("clip"),
    "models/vit-base": _model("vit"),
    "checkpoint": _transformers,
    "my_functions.py": lambda path: path.write_text(_FUNCTIONS) and None,
    "cat.png": lambda path: shutil.copy(REPOSITORY / "fixtures" / "tiny" / "images" / "tall.png", path) and None,
    "photo.jpg": lambda path: shutil.copy(REPOSITORY / "fixtures" / "tiny" / "images" / "tall.png", path) and None,
    "speech.wav": _sound,
}

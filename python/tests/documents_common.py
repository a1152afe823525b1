"""The code blocks of the documents and the examples of `--help`, and the folders in which tests execute them.

documents.toml lists every block in the order of its document, and how it is executed. test_documents.py fails for a block that
is not in the list.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional

import numpy
import pytest
from conftest import REPOSITORY, Daemon
from functions_common import environment, until

tomllib = pytest.importorskip("tomllib")

#: The documents whose blocks are executed: all but the decisions.
_PAGES = (str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "docs").rglob("*.md"))
DOCUMENTS = ["README.md", "python/README.md", *sorted(page for page in _PAGES if not page.startswith("docs/decisions/"))]
#: The longest run of one block, in seconds.
BLOCK_SECONDS_MAX = 300
_FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: Executes a file like the asyncio REPL and notebooks: `await` is allowed outside of functions.
_RUNNER = """
import ast, asyncio, inspect, sys
if __name__ == "__main__":
    with open(sys.argv[1]) as block:
        code = compile(block.read(), sys.argv[1], "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    waiting = eval(code, globals())
    if inspect.iscoroutine(waiting):
        asyncio.run(waiting)
"""
#: A number, with the unit of a time or a size: a slow machine prints `2 s` for `615 ms`.
_NUMBER = re.compile(r"\d+(\.\d*)?( (us|ms|s|min|B|KiB|MiB|GiB)\b)?")
_INDENTED = re.compile(r"(?:^    \S.*\n(?:^(?:    .*)?\n)*)+", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A code block of a document."""

    document: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks(document: str) -> List[Block]:
    """The fenced and the indented code blocks of a document, in order."""
    text = (REPOSITORY / document).read_text()
    found = []
    # Fenced text is blanked, so that its indented lines are not found again as blocks.
    blank = _FENCED.sub(lambda match: re.sub(r"[^\n]", "", match[0]), text)
    for match in _FENCED.finditer(text):
        found.append(Block(document, text.count("\n", 0, match.start()) + 1, match[1].strip(), match[2]))
    for match in _INDENTED.finditer(blank):
        lines = (line[4:] for line in match[0].rstrip().splitlines())
        found.append(Block(document, blank.count("\n", 0, match.start()) + 1, "", "\n".join(lines) + "\n"))
    return sorted(found, key=lambda block: block.line)


def manifest() -> Dict[str, Any]:
    """The contents of documents.toml."""
    return tomllib.loads((Path(__file__).parent / "documents.toml").read_text())


def part_of(text: str, file: str) -> bool:
    """Whether `text` stands in a file of the repository, or in a cell of a notebook."""
    contents = (REPOSITORY / file).read_text()
    if file.endswith(".ipynb"):
        return any(text in "".join(cell["source"]) + "\n" for cell in json.loads(contents)["cells"])
    return text in contents


def shape(output: str) -> List[str]:
    """The lines of an output, without the values of numbers and the widths of columns."""
    return [re.sub(r"\s+", " ", _NUMBER.sub("0", line)).strip() for line in output.strip().splitlines()]


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


class Workspace:
    """A folder with the files that a document names, a daemon, and the programs that its blocks start."""

    def __init__(self, folder: Path, serve: Optional[List[str]]) -> None:
        self.folder = folder
        #: Whether a program of the document may have started a daemon.
        self._autostart = serve is None
        self.daemon = Daemon(folder, *serve) if serve is not None else None
        scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = environment(
            PATH=scripts,
            HOME=str(folder),
            COTENSOR_SOCKET=str(folder / "s"),
            COTENSOR_CACHE=str(folder / "cache"),
            COTENSOR_CONFIG="",
            COTENSOR_AUTOSTART=str(int(self._autostart)),
            COTENSOR_IDLE_EXIT="60",
            XDG_CONFIG_HOME=str(folder / ".config"),
            PYTHONPATH=str(folder),
        )
        #: The address and port of the daemon's HTTP server; empty without one.
        self.http = (self.daemon.info["http"] or "") if self.daemon is not None else ""
        self._running: List[subprocess.Popen[str]] = []

    def shell(self, text: str, where: object) -> str:
        """Executes shell commands, which must all succeed, and returns their output. Background processes run until the
        workspace is closed."""
        return self._finish(["bash", "-euo", "pipefail", "-c", text], where)

    def python(self, text: str, where: object) -> str:
        """Executes a program to its end, and returns its output."""
        (self.folder / "runner.py").write_text(_RUNNER)
        (self.folder / "block.py").write_text(text)
        try:
            compile(text, "block.py", "exec")
            runner = []
        except SyntaxError:
            runner = ["runner.py"]
        return self._finish([sys.executable, *runner, "block.py"], where)

    def provider(self, text: str, function: str) -> None:
        """Starts a program that runs until the workspace is closed, and waits until it provides `function`."""
        (self.folder / "provider.py").write_text(text)
        self._start([sys.executable, "provider.py"], function)

    def server(self, text: str, function: str) -> None:
        """Starts a shell command that runs until the workspace is closed, and waits until it provides `function`."""
        self._start(["bash", "-c", text], function)

    def _start(self, command: List[str], function: str) -> None:
        log_file = self.folder / "provider.log"
        with open(log_file, "w") as log:
            running = subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=log, stderr=log, text=True, start_new_session=True
            )
        self._running.append(running)

        def is_provided() -> bool:
            assert running.poll() is None, log_file.read_text()
            listed = subprocess.run(
                [sys.executable, "-m", "cotensor", "call", "--list", function],
                capture_output=True,
                text=True,
                env=self.environment,
                timeout=60,
            )
            return function in listed.stdout

        until(is_provided)

    def _finish(self, command: List[str], where: object) -> str:
        with open(self.folder / "output", "w+") as output, open(self.folder / "errors", "w+") as errors:
            # Background processes keep their output open, so reading a pipe would not end.
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
            printed, error_output = output.read(), errors.read()
        assert code == 0, f"{where} ended with {code}:\n{printed}\n{error_output}"
        return printed

    def close(self) -> None:
        for running in reversed(self._running):
            try:
                os.killpg(running.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            running.wait()
        if self._autostart:
            stop = [sys.executable, "-m", "cotensor", "stop"]
            subprocess.run(stop, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
        if self.daemon is not None:
            self.daemon.stop()


@contextmanager
def workspace(files: List[str], serve: Optional[List[str]]) -> Iterator[Workspace]:
    """A workspace with these files, and with a daemon of these flags unless `serve` is None."""
    # The names of pytest's folders are too long for the path of a socket.
    with tempfile.TemporaryDirectory(prefix="cot-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for file in files:
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            FILES[file](path)
        opened = Workspace(folder, serve)
        try:
            yield opened
        finally:
            opened.close()


def _array(*shape: int) -> Callable[[Path], None]:
    return lambda path: numpy.save(path, numpy.ones(shape, numpy.float32))


def _safetensors(path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"classifier.weight": numpy.ones((2, 4), numpy.float32), "x": numpy.zeros(3, numpy.float32)}, path)


def _model(family: str) -> Callable[[Path], None]:
    return lambda path: shutil.copytree(REPOSITORY / "fixtures" / "tiny" / family, path) and None


#: Functions that create the files of the documents, by file name.
FILES: Dict[str, Callable[[Path], None]] = {
    "query.npy": _array(16),
    "photo.npy": _array(8, 8, 3),
    "x.npy": _array(3),
    "noise.bin": lambda path: path.write_bytes(bytes(16 * 1024 * 4)) and None,
    "model.safetensors": _safetensors,
    "bert": _model("bert"),
    "fixtures": lambda path: path.symlink_to(REPOSITORY / "fixtures"),
    "examples": lambda path: path.symlink_to(REPOSITORY / "examples"),
    "models/bert": _model("bert"),
}

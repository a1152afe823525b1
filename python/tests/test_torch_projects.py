"""`make test-projects` with tests of our own: what is offloaded, what is counted, and what fails the run."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tomllib")
pytest.importorskip("xdist")

PACKAGE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PACKAGE))

from projects.catalog import Exempt, Project, projects  # noqa: E402
from projects.report import Outcome, Row, failures  # noqa: E402
from projects.sources import SourceError, unpack  # noqa: E402

TESTS = """
import os
import torch

device = os.environ["TORCH_DEVICE"]

def model():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)).to(device)

def test_forward():
    result = model()(torch.ones(1, 4, device=device))
    assert result.device.type == device and result.shape == (1, 2)

def test_back_on_the_host():
    moved = model()
    moved.to("cpu")
    assert moved[0].weight.is_cpu and moved(torch.ones(1, 4)).is_cpu

def test_weights_are_on_the_device():
    weight = model()[0].weight
    with torch._C.DisableTorchFunction():
        assert weight.device.type == device

def test_fails():
    assert not model()

def test_ends_its_process():
    if device != "cpu":
        os._exit(1)
"""


def test_a_project_of_two_strategies(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_layers.py").write_text(TESTS)
    written = tmp_path / "results.json"
    command = [
        sys.executable,
        "-m",
        "projects",
        "timm",
        "--source",
        f"timm={tmp_path}",
        "--files",
        "test_layers.py",
        "--jobs",
        "1",
    ]
    done = subprocess.run(
        [*command, "--work", str(tmp_path / "work"), "--json", str(written)],
        cwd=PACKAGE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=110,
    )
    assert done.returncode == 1 and written.is_file(), done.stdout[-3000:] + done.stderr[-3000:]
    data = json.loads(written.read_text())
    modes = data["projects"][0]["modes"]
    found = {mode: {name.split("::")[1]: one for name, one in results.items()} for mode, results in modes.items()}
    passed = {mode: {name for name, one in results.items() if one["outcome"] == "passed"} for mode, results in found.items()}
    both = {"test_forward", "test_back_on_the_host"}
    assert passed == {
        "host": {*both, "test_weights_are_on_the_device", "test_ends_its_process"},
        "plain": {*both, "test_weights_are_on_the_device"},
        "flow": both,
        "genoa": both,
    }
    assert {one["offloaded"] for one in found["flow"].values()} == {1}
    assert {one["offloaded"] for one in found["plain"].values()} == {0}
    assert data["failures"] == [f"timm, {mode}: 0.6667 is below 0.99" for mode in ("flow", "genoa")]
    assert "test_weights_are_on_the_device\n  " in done.stdout


EXEMPT = Exempt(["test"], "a reason", ["genoa"])
PROJECT = Project("project", "", "", [], "moved", [], exceptions=[EXEMPT])


def row(**outcomes: str) -> Row:
    """One test, by mode."""
    return Row(PROJECT, "1", {mode: {"test": Outcome(one, offloaded=mode == "flow")} for mode, one in outcomes.items()})


def test_a_run_that_compares_nothing_fails():
    modes = ["plain", "flow"]
    assert failures([row(plain="passed", flow="passed")], modes) == []
    assert failures([row(plain="passed", flow="not run")], modes) == ["project, flow: 0.0000 is below 0.99"]
    assert failures([row(plain="passed", genoa="failed")], ["plain", "genoa"]) == ["project, genoa: no test offloads a model"]
    assert failures([row(plain="failed", flow="passed")], modes) == ["project: no test passes with plain"]
    assert failures([row(plain="passed", genoa="passed")], ["plain", "genoa"]) == ["project, genoa: no test offloads a model"]
    assert failures([], modes) == ["no project ran"]


def test_projects_have_archives():
    for project in projects().values():
        assert bool(project.package) != bool(project.debian), project.name
        assert len(project.sha256) == 64 and project.files, project.name
        assert all(name.startswith(tuple(project.members)) for name in project.files), project.name


def test_an_archive_is_unpacked_within_its_folder(tmp_path):
    def archive(name: str) -> Path:
        path = tmp_path / "archive.tar"
        with tarfile.open(path, "w") as opened:
            for one in ("project-1/setup.py", name):
                entry = tarfile.TarInfo(one)
                entry.size = 1
                opened.addfile(entry, io.BytesIO(b"#"))
        return path

    unpack(archive("project-1/tests/test_one.py"), tmp_path / "one", ["tests/"])
    assert [str(path.relative_to(tmp_path / "one")) for path in (tmp_path / "one").rglob("*.py")] == ["tests/test_one.py"]
    with pytest.raises(SourceError, match="has no tests/"):
        unpack(archive("project-1/other.py"), tmp_path / "two", ["tests/"])
    with pytest.raises(tarfile.OutsideDestinationError):
        unpack(archive("project-1/tests/../../outside.py"), tmp_path / "three", ["tests/"])
    assert not (tmp_path / "outside.py").exists()

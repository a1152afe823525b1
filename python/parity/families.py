"""The families of models at small size, with the graphs of both exporters of torch and with every engine.

    python python/parity/families.py FILE.json

Exports the models of fixtures/tiny again with the exporter that traces, runs the test `stage_references` of cotensor-model on
both folders, and writes the differences that it prints. ORT_DYLIB_PATH names the library of onnxruntime.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List

REPOSITORY = Path(__file__).resolve().parents[2]
#: The scripts that make fixtures/tiny.
SCRIPTS = ("tiny.py", "vision.py", "tiny_text.py", "image_texts.py")
TEST = "cargo test -p cotensor-model --test integration stage_references -- --nocapture --test-threads=1".split()
#: engine, family, stage and case, output, difference in standard deviations of the reference.
LINE = re.compile(r"^(?:.* \.\.\. )?(rten|ort|ort-shared) (\S+) (\S+) (\S+): (\S+)$", re.MULTILINE)
REFUSED = re.compile(r"^(?:.* \.\.\. )?(rten|ort|ort-shared) (\S+) refused: ", re.MULTILINE)


def legacy(target: Path) -> Path:
    """A copy of the fixtures whose models are exported by the exporter that traces."""
    shutil.copytree(REPOSITORY / "fixtures", target)
    exporter = Path(__file__).with_name("legacy_fixtures.py")
    for script in SCRIPTS:
        command = [sys.executable, "-W", "ignore", str(exporter), str(target / "scripts" / script)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=1800)
    return target


def measure(fixtures: Path) -> Dict[str, Dict[str, Any]]:
    """The largest difference of each family and engine, or "refused"."""
    environment = {**os.environ, "COTENSOR_TEST_FIXTURES": str(fixtures.resolve())}
    run = subprocess.run(TEST, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(run.stdout[-4000:] + run.stderr[-4000:])
    return parsed(run.stdout)


def parsed(printed: str) -> Dict[str, Dict[str, Any]]:
    found: Dict[str, Dict[str, Any]] = {}
    for engine, family, _, _, difference in LINE.findall(printed):
        by_engine = found.setdefault(family, {})
        by_engine[engine] = max(by_engine.get(engine, 0.0), float(difference))
    for engine, family in REFUSED.findall(printed):
        found.setdefault(family, {})[engine] = "refused"
    return found


def main(path: Path) -> None:
    found: List[Dict] = []
    with tempfile.TemporaryDirectory() as scratch:
        for exporter, fixtures in (("dynamo", REPOSITORY / "fixtures"), ("legacy", legacy(Path(scratch) / "fixtures"))):
            for family, by_engine in measure(fixtures).items():
                found.append({"family": family, "exporter": exporter, **by_engine})
    path.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

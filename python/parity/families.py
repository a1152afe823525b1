"""The families of models at small size, with the graphs of several exporters and with every engine.

Exports the models of fixtures/tiny and fixtures/sounds again with other exporters, runs the tests of cotensor-model that compare
stages on each folder, and reads the differences that they print.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Tuple

from exports import error_of

REPOSITORY = Path(__file__).resolve().parents[2]
FIXTURES = REPOSITORY / "fixtures"
OTHER = str(Path(__file__).with_name("other_fixtures.py"))


def each(*names: str) -> Dict[str, List[str]]:
    return {name: [name] for name in names}


#: The scripts that make fixtures/tiny and the models of fixtures/sounds: their arguments, and the families of each.
SCRIPTS = {
    "tiny.py": each("bert", "vit", "clip", "whisper"),
    "vision.py": {**each("deit", "dinov2", "detr"), "siglip": ["siglip", "siglip-whole"]},
    "tiny_text.py": each("t5", "bart", "llama", "mistral", "qwen2", "qwen3", "gpt2"),
    "image_texts.py": each("blip", "llava"),
    "sounds.py": {
        **{name: [f"wav2vec2-{name}"] for name in ("ctc", "stable", "classification")},
        "clap_even": ["clap-even"],
        "clap_resized": ["clap"],
    },
}
TESTS = ("stage_references", "sounds::wav2vec2_stages", "sounds::towers_of_clap")
COMMAND = [*"cargo test -p cotensor-model --test integration --".split(), *TESTS, "--nocapture", "--test-threads=1"]
#: engine, family, stage and case, output, difference in standard deviations of the reference.
LINE = re.compile(r"^(?:.* \.\.\. )?(rten|ort|ort-shared) (\S+) (\S+) (\S+): (\S+)$", re.MULTILINE)
REFUSED = re.compile(r"^(?:.* \.\.\. )?(rten|ort|ort-shared) (\S+) refused: ", re.MULTILINE)


def exported(target: Path, exporter: str) -> Tuple[Path, Dict[str, str]]:
    """A copy of the fixtures whose models are of another exporter, and the errors of the families that it does not export."""
    shutil.copytree(FIXTURES, target)
    errors = {}
    for script, families in SCRIPTS.items():
        # optimum refuses some families; one of them must not end the others.
        each_alone = [([argument], names) for argument, names in families.items()]
        all_at_once = [(list(families), [name for names in families.values() for name in names])]
        for arguments, names in each_alone if exporter == "optimum" else all_at_once:
            command = [sys.executable, "-W", "ignore", OTHER, exporter, str(target / "scripts" / script), *arguments]
            run = subprocess.run(command, capture_output=True, text=True, timeout=600)
            if run.returncode:
                errors.update({name: error_of(run.stderr) for name in names})
    # The tests run all families; what is not exported is not reported.
    for name in errors:
        part = next(part for part in ("tiny", "sounds") if (FIXTURES / part / name).exists())
        shutil.rmtree(target / part / name, ignore_errors=True)
        shutil.copytree(FIXTURES / part / name, target / part / name)
    return target, errors


def measure(fixtures: Path, library: str) -> Dict[str, Dict[str, Any]]:
    """The largest difference of each family and engine, or "refused"."""
    environment = {**os.environ, "COTENSOR_TEST_FIXTURES": str(fixtures.resolve()), "ORT_DYLIB_PATH": library}
    run = subprocess.run(COMMAND, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
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


def measured(library: str) -> List[Dict]:
    """The rows of the table. `library` is that of onnxruntime."""
    found: List[Dict] = []
    with tempfile.TemporaryDirectory() as scratch:
        for exporter in ("dynamo", "legacy", "optimum"):
            fixtures, errors = FIXTURES, {}
            if exporter != "dynamo":
                fixtures, errors = exported(Path(scratch) / exporter, exporter)
            for family, by_engine in measure(fixtures, library).items():
                if family not in errors:
                    found.append({"family": family, "exporter": exporter, **by_engine})
            found += [{"family": family, "exporter": exporter, "error": error} for family, error in errors.items()]
    return found

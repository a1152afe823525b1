#!/usr/bin/env bash
# Builds the Python extension into a virtual environment of its own and runs its tests: `numpy` those that need no more,
# `torch` those that need torch, transformers and JAX (a large download, once).
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:?numpy or torch}
venv=${COTENSOR_VENVS:-target/python}/$kind
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
PIP_DISABLE_PIP_VERSION_CHECK=1 "$venv/bin/pip" install --quiet -r "python/requirements/$kind.txt"
source "$venv/bin/activate"
maturin develop --quiet --manifest-path python/Cargo.toml --target-dir "${CARGO_TARGET_DIR:-target}"
cd python
case $kind in
  numpy)
    ruff check .
    tests=(--ignore-glob='*test_torch*')
    ;;
  torch)
    # Where all that the package may import is there.
    mypy
    # The documents' blocks that need torch are skipped where it is missing.
    tests=(tests/test_torch*.py tests/test_documents.py)
    ;;
esac
# pytest fails when it finds no test (exit code 5).
python -m pytest -q "${tests[@]}"

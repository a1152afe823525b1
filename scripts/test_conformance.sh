#!/usr/bin/env bash
# test_conformance.sh [ARGUMENT …]: compares offloaded operators, modules and optimizers with PyTorch, on the databases of PyTorch's own tests.
# `--help` lists the arguments of python/conformance.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(scripts/python_environment.sh torch)
source "$venv/bin/activate"
maturin develop --quiet --manifest-path python/Cargo.toml --target-dir "${CARGO_TARGET_DIR:-target}"
cd python
# Each process has one thread; idle threads of torch must not occupy a core.
export OMP_WAIT_POLICY=passive
exec nice -n 10 python -m conformance "$@"

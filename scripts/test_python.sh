#!/usr/bin/env bash
# test_python.sh KIND: builds the Python extension into a virtual environment and runs its tests. `numpy` runs the tests
# without torch; `torch` those that need torch,
# transformers and JAX (a large download, once); `ray` those of cotensor.ray, in the environment of `torch`.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:?numpy, torch or ray}
venv=$(scripts/python_environment.sh "${kind/ray/torch}")
source "$venv/bin/activate"
# The extension uses Python's stable ABI, so that the second environment installs what the first one compiled; and the workspace's features, so that
# its dependencies are those that `make unit` compiled.
CARGO=$PWD/scripts/workspace_cargo.sh maturin develop --quiet --manifest-path python/Cargo.toml --target-dir "${CARGO_TARGET_DIR:-target}"
# The driver of tests for tensors on devices. It is a part of the workspace that the extension was built with.
export COTENSOR_FAKE_CUDA=${CARGO_TARGET_DIR:-$PWD/target}/debug/libcotensor_fake_cuda.so
scripts/workspace_cargo.sh build --quiet --workspace --bins --examples --lib
cd python
# Idle threads of torch must not occupy a core.
export OMP_WAIT_POLICY=passive
# Two processes, each with whole files, because the tests of a file share its daemon. Files start in the given order.
run_tests() { python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --durations=5 "$@"; }
case $kind in
  numpy)
    ruff check .
    ruff check --config pyproject.toml ../examples/recipes ../examples/first_week ../tests/versions
    # Other Python of the repository has another layout; names that do not exist are errors there, too.
    ruff check --config pyproject.toml --select F ../scripts ../fixtures ../tools ../examples ../tests
    tests=(--ignore-glob='*test_torch*' --ignore-glob='*test_ray*')
    ;;
  ray)
    # One process: each cluster takes all processors of the machine.
    run_tests() { python -m pytest -q --durations=5 "$@"; }
    tests=(tests/test_ray_*.py tests/test_documents.py::test_document_with_ray)
    ;;
  torch)
    # Only this environment has all packages that the Python package imports.
    mypy
    # A process of their own: PyTorch counts devices at its first backward pass, before which the simulated one must be there.
    run_tests tests/test_torch_tensorref*.py
    # The numpy part runs the other documents. The slowest files are first.
    tests=(tests/test_torch_recipes.py tests/test_documents.py::test_document_with_torch)
    mapfile -t -O 2 tests < <(find tests -name 'test_torch*.py' ! -name 'test_torch_tensorref*' ! -name test_torch_recipes.py | sort)
    ;;
esac
# pytest fails when it finds no test (exit code 5).
run_tests "${tests[@]}"

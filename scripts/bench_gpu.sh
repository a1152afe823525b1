#!/usr/bin/env bash
# Runs python/benches/gpu.py, with its arguments. See `make bench-gpu`.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -n "${COTENSOR_BENCH_PYTHON:-}" ]; then
  PYTHONPATH=$PWD/python exec "$COTENSOR_BENCH_PYTHON" python/benches/gpu.py "$@"
fi
venv=$(scripts/python_environment.sh torch)
"$venv/bin/pip" install --quiet --no-deps --force-reinstall ./python
exec "$venv/bin/python" python/benches/gpu.py "$@"

#!/usr/bin/env bash
# bench_peers.sh [ARGUMENT …]: runs python/benches/$BENCH.py (peers by default).
# Compares Cotensor with Ray, torch.multiprocessing, shared_memory, safetensors and HTTP in one run, as ratios.
# Installs the package with an optimised extension, as users get it.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(scripts/python_environment.sh bench)
"$venv/bin/pip" install --quiet --no-deps --force-reinstall ./python
# Runs at the repository's root, so that the installed package is imported and not the source folder.
exec "$venv/bin/python" "python/benches/${BENCH:-peers}.py" "$@"

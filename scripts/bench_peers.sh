#!/usr/bin/env bash
# Cotensor and its peers (Ray, torch.multiprocessing, shared_memory, safetensors, HTTP) in one run: ratios.
# The extension is built as users get it, optimised.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${COTENSOR_VENVS:-target/python}/bench
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
PIP_DISABLE_PIP_VERSION_CHECK=1 "$venv/bin/pip" install --quiet -r python/requirements/bench.txt
"$venv/bin/pip" install --quiet --no-deps --force-reinstall ./python
# From elsewhere: the package as it is installed, not the folder beside.
exec "$venv/bin/python" python/benches/peers.py "$@"

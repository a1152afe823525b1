#!/usr/bin/env bash
# python_environment.sh KIND: creates the virtual environment for the Python tests or the site, with the packages of
# python/requirements/KIND.txt (`numpy`, `torch`, `bench` or `site`), and prints its path.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:?numpy, torch, bench or site}
venv=${COTENSOR_VENVS:-$PWD/target/python}/$kind
[ -x "$venv/bin/python" ] || python3 -m venv "$venv" >&2
PIP_DISABLE_PIP_VERSION_CHECK=1 "$venv/bin/pip" install --quiet -r "python/requirements/$kind.txt" >&2
echo "$venv"

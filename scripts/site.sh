#!/usr/bin/env bash
# site.sh [ARGUMENTS]: builds the site of the documents in target/site, or runs `mkdocs ARGUMENTS`, such as `serve`. Fails for a link to a page or a
# heading that does not exist. The reference of the Python package is made from its docstrings, those of the extension module included.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(scripts/python_environment.sh site)
extension=python/cotensor/_native.abi3.so
if ! [ -e $extension ]; then
  cargo build --quiet --package cotensor-python --features extension-module
  cp "${CARGO_TARGET_DIR:-target}/debug/lib_native.so" $extension
fi
[ $# -gt 0 ] || set -- build --clean
NO_MKDOCS_2_WARNING=1 PYTHONPATH=python:scripts exec "$venv/bin/mkdocs" "$@"

#!/usr/bin/env bash
# Builds the browser package and runs its benches, in Node and in a headless Chromium.
set -euo pipefail
cd "$(dirname "$0")/.."
CHROMIUM=$(scripts/browser.sh chromium)
export CHROMIUM
scripts/build_web.sh
scripts/transformers_js.sh
cd web
for bench in benches/*.mjs; do
  echo "== $bench"
  node "$bench"
done

#!/usr/bin/env bash
# Tests the dashboard in a headless Chromium. Needs Node and Chromium; installs them when run as root on Debian.
set -euo pipefail
cd "$(dirname "$0")/.."

CHROMIUM=$(scripts/browser.sh)
export CHROMIUM

# Builds all examples and programs of the workspace, with the features of its tests, so that no dependency is compiled again.
${CARGO:-cargo} build --quiet --workspace --examples --bins
export EXAMPLES="${CARGO_TARGET_DIR:-$PWD/target}/debug/examples"
cd tests/dashboard
[ -d node_modules/playwright-core ] || npm install --no-package-lock --no-audit --no-fund --silent
exec node --test

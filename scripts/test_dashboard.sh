#!/usr/bin/env bash
# Tests the dashboard in a headless Chromium. Needs Node and Chromium; installs them when run as root on Debian.
set -euo pipefail
cd "$(dirname "$0")/.."

browser() { command -v chromium || command -v chromium-browser || command -v google-chrome || true; }
missing=()
[ -n "${CHROMIUM:-$(browser)}" ] || missing+=(chromium)
command -v node >/dev/null || missing+=(nodejs)
command -v npm >/dev/null || missing+=(npm)
if [ ${#missing[@]} -gt 0 ]; then
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || { echo "missing: ${missing[*]}; or set CHROMIUM" >&2; exit 1; }
  install() { apt-get install --yes --quiet --no-install-recommends "${missing[@]}"; }
  install || { apt-get update --quiet && install; }
fi
export CHROMIUM="${CHROMIUM:-$(browser)}"

# Builds all examples and programs of the workspace, with the features of its tests, so that no dependency is compiled again.
${CARGO:-cargo} build --quiet --workspace --examples --bins
export EXAMPLES="${CARGO_TARGET_DIR:-$PWD/target}/debug/examples"
cd tests/dashboard
[ -d node_modules/playwright-core ] || npm install --no-package-lock --no-audit --no-fund --silent
exec node --test

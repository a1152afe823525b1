#!/usr/bin/env bash
# The daemon's page in a real headless Chromium. Needs node and Chromium; as root on Debian it installs the latter.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v node >/dev/null || { echo "node is missing (Debian: apt-get install nodejs npm)" >&2; exit 1; }
browser() { command -v chromium || command -v chromium-browser || command -v google-chrome || true; }
if [ -z "${CHROMIUM:-$(browser)}" ]; then
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || { echo "chromium is missing; or set CHROMIUM" >&2; exit 1; }
  apt-get install --yes --no-install-recommends chromium
fi
export CHROMIUM="${CHROMIUM:-$(browser)}"

${CARGO:-cargo} build --quiet -p cotensor-daemon --example serve
export SERVE="${CARGO_TARGET_DIR:-$PWD/target}/debug/examples/serve"
cd tests/dashboard
[ -d node_modules/playwright-core ] || npm install --no-package-lock --no-audit --no-fund --silent
exec node --test

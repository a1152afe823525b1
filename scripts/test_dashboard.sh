#!/usr/bin/env bash
# The daemon's page in a real headless Chromium. Needs node and Chromium; as root on Debian it installs them.
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

# All of the workspace's, as its tests have them: what those built is not built again.
${CARGO:-cargo} build --quiet --workspace --examples
export EXAMPLES="${CARGO_TARGET_DIR:-$PWD/target}/debug/examples"
cd tests/dashboard
[ -d node_modules/playwright-core ] || npm install --no-package-lock --no-audit --no-fund --silent
exec node --test

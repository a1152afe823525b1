#!/usr/bin/env bash
# Prints the path of a Chromium, which CHROMIUM may name. Installs it, Node and npm when run as root on Debian and they are missing.
set -euo pipefail

browser() { command -v chromium || command -v chromium-browser || command -v google-chrome || true; }
missing=()
[ -n "${CHROMIUM:-$(browser)}" ] || missing+=(chromium)
command -v node >/dev/null || missing+=(nodejs)
command -v npm >/dev/null || missing+=(npm)
if [ ${#missing[@]} -gt 0 ]; then
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || { echo "missing: ${missing[*]}; or set CHROMIUM" >&2; exit 1; }
  install() { apt-get install --yes --quiet --no-install-recommends "${missing[@]}" >&2; }
  install || { apt-get update --quiet >&2 && install; }
fi
echo "${CHROMIUM:-$(browser)}"

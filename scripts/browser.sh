#!/usr/bin/env bash
# browser.sh [chromium|firefox]: prints the path of a browser, which CHROMIUM or FIREFOX may name. Installs it, Node and npm when run as root
# on Debian and they are missing; with Firefox, Mesa's software adapter, which Chromium has of its own. Firefox before 141 has no WebGPU:
# when run as root on Debian, the script tries to install a newer one.
set -euo pipefail

find_one() { for name in "$@"; do command -v "$name" && return; done; true; }
case ${1:-chromium} in
  chromium) named=${CHROMIUM:-} names=(chromium chromium-browser google-chrome) packages=(chromium) ;;
  firefox) named=${FIREFOX:-} names=(firefox-esr firefox) packages=(firefox-esr mesa-vulkan-drivers) ;;
  *) echo "usage: browser.sh [chromium|firefox]" >&2; exit 2 ;;
esac
missing=()
[ -n "${named:-$(find_one "${names[@]}")}" ] || missing+=("${packages[@]}")
command -v node >/dev/null || missing+=(nodejs)
command -v npm >/dev/null || missing+=(npm)
if [ "${1:-}" = firefox ] && [ ${#missing[@]} = 0 ] && [ -z "$named" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  version=$("$(find_one "${names[@]}")" --version 2>/dev/null | grep --only-matching --extended-regexp '[0-9]+' | head -n 1)
  if [ "${version:-0}" -lt 141 ]; then
    { apt-get update --quiet && apt-get install --yes --quiet --no-install-recommends "${packages[@]}"; } >&2 || echo "Firefox $version stays" >&2
  fi
fi
if [ ${#missing[@]} -gt 0 ]; then
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || { echo "missing: ${missing[*]}; or set CHROMIUM and FIREFOX" >&2; exit 1; }
  install() { apt-get install --yes --quiet --no-install-recommends "${missing[@]}" >&2; }
  install || { apt-get update --quiet >&2 && install; }
fi
echo "${named:-$(find_one "${names[@]}")}"

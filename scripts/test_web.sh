#!/usr/bin/env bash
# Builds the browser package and tests it in Node and in a headless Chromium. With REQUIRE_WEBGPU, a browser without WebGPU is an error.
set -euo pipefail
cd "$(dirname "$0")/.."

CHROMIUM=$(scripts/browser.sh)
export CHROMIUM
scripts/build_web.sh
cd web
# The published types, as a program of a user sees them.
node_modules/.bin/tsc -p tests
exec node --test --test-reporter=spec tests/*.test.mjs

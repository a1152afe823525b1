#!/usr/bin/env bash
# Builds the browser package and tests it in Node, in a headless Chromium and in a headless Firefox. With REQUIRE_WEBGPU, a browser that has
# WebGPU but no adapter is an error.
set -euo pipefail
cd "$(dirname "$0")/.."

CHROMIUM=$(scripts/browser.sh chromium)
FIREFOX=$(scripts/browser.sh firefox)
export CHROMIUM FIREFOX
scripts/build_web.sh
scripts/transformers_js.sh
cd web
# The published types, as a program of a user sees them.
node_modules/.bin/tsc -p tests
exec node --test --test-reporter=spec --test-concurrency=2 --test-timeout=600000 tests/*.test.mjs

#!/usr/bin/env bash
# Runs python/benches/low_bit.py with the arguments: a trained decoder and a real encoder with weights of few bits. Both are made first; that of the encoder is
# a download of 80 MB.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
"${CARGO:-cargo}" build -p cotensor-cli
scripts/decoder.sh "$target/decoder"
scripts/encoder.sh "$target/encoder" "$target/wheels"
python=$(scripts/python_environment.sh torch)/bin/python
"$python" python/benches/low_bit.py --command "$target/debug/cotensor" --decoder "$target/decoder" --encoder "$target/encoder" --work "$target/low-bit" "$@"

#!/usr/bin/env bash
# first_hour_as_user.sh: what a new user types, from the wheel of this folder to a sentence encoder that four processes share. `encoder` is a
# model's folder, `packages` has what the wheel's extras name. Prints the seconds and the number of lines, and checks that there is one model process.
set -euo pipefail
lines_max=12
mkdir first-hour
cd first-hour
ln -s ../cotensor-*.whl ../packages ../encoder .
trap '[ ! -x env/bin/cotensor ] || env/bin/cotensor stop' EXIT

# The lines that the user types.
cat >typed.sh <<'TYPED'
python3 -m venv env
env/bin/pip install --quiet --no-index --find-links packages "$(echo cotensor-*.whl)[numpy,onnxruntime]"
cat >embed.py <<'END'
import sys, cotensor
encoder = cotensor.Embedder("encoder")
vector, boat = encoder.embed([sys.argv[1], "a boat"])
print(f"{sys.argv[1]}, {vector.size} numbers, near a boat: {vector @ boat:.2f}")
END
for text in "a ferry" "a ship" "a train" "a tune"; do env/bin/python embed.py "$text" & done; wait
env/bin/cotensor models ps
TYPED

lines=$(grep --count . typed.sh)
echo "== the first hour, in $lines lines"
start=$(date +%s%N)
PS4='> ' bash -euo pipefail -x typed.sh | tee printed
milliseconds=$((($(date +%s%N) - start) / 1000000))

[ "$(grep --count '384 numbers' printed)" = 4 ] || { echo "first_hour_as_user.sh: not four answers" >&2; exit 1; }
nearest=$(grep '384 numbers' printed | sort --field-separator : --key 2 --numeric-sort | tail -n 1)
[[ $nearest == "a ship"* ]] || { echo "first_hour_as_user.sh: nearest to a boat is: $nearest" >&2; exit 1; }
[ "$lines" -le $lines_max ] || { echo "first_hour_as_user.sh: $lines lines, $lines_max at most" >&2; exit 1; }
processes=0
for process in /proc/[0-9]*; do
  # A process of another user, or one that has ended, cannot be read.
  if { tr '\0' ' ' <"$process/cmdline"; } 2>/dev/null | grep --quiet 'serve-models' && grep --quiet --null --text "HOME=$HOME" "$process/environ" 2>/dev/null; then
    processes=$((processes + 1))
  fi
done
[ "$processes" = 1 ] || { echo "first_hour_as_user.sh: $processes model processes, not one" >&2; exit 1; }
printf 'first hour: %d lines, four processes with one model process, %d.%d s from the wheel\n' "$lines" $((milliseconds / 1000)) $((milliseconds % 1000 / 100))

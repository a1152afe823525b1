#!/usr/bin/env bash
# try_dist_as_user.sh: uses the tarball and the wheel of this folder, in a system that try_dist.sh prepares: `model` is a small model,
# `packages` has what the wheel's extras name.
set -euo pipefail
export XDG_CACHE_HOME=$HOME/cache

echo "== the tarball"
tar xzf cotensor-*.tar.gz
PATH=$HOME/$(basename cotensor-*.tar.gz .tar.gz)/bin:$PATH
cotensor version
cotensor doctor || true
printf '\0\0\200?\0\0\0@' >two.bin
cotensor put two two.bin --dtype float32 --shape 2
cotensor get two again.raw && cmp two.bin again.raw
cotensor embed model "a text" | grep -q '"embedding":'
cotensor models ps
cotensor stop
ls cotensor-*/share/completions cotensor-*/share/systemd

echo "== the wheel, without torch"
PATH=/usr/local/bin:/usr/bin:/bin
start=$(date +%s%N)
python3 -m venv env
env/bin/pip install --quiet --no-index --find-links packages "$(echo cotensor-*.whl)[numpy,onnxruntime]"
env/bin/python - <<'PYTHON'
import cotensor
embedder = cotensor.Embedder("model")
print(embedder.embed(["a text", "another"]).shape)
PYTHON
echo "installed, and the first shared model used, after $((($(date +%s%N) - start) / 1000000)) ms"
env/bin/cotensor version
env/bin/cotensor models ps
env/bin/python - <<'PYTHON'
import importlib.metadata

import cotensor
import numpy

written = numpy.arange(1 << 20, dtype="float32").reshape(1024, 1024)
with cotensor.connect() as store:
    for name, array in {"large": written, "small": written[:2, :2]}.items():
        store.put(name, array)
        numpy.testing.assert_array_equal(store.get(name).numpy(), array)
    print("tensors:", sorted(store))

about = importlib.metadata.metadata("cotensor")
assert set(about.get_all("Provides-Extra")) == {"numpy", "onnxruntime", "torch"}, about.get_all("Provides-Extra")
assert {line.split(",")[0] for line in about.get_all("Project-URL")} == {"Repository", "Documentation", "Changelog", "Issues"}
licences = [file for file in importlib.metadata.files("cotensor") if "licenses" in file.parts]
assert {file.name for file in licences} == set(about.get_all("License-File")) == {"LICENSE-MIT", "LICENSE-APACHE"}, licences
assert "Permission is hereby granted" in licences[0].read_text() + licences[1].read_text()
print("licence:", about["License-Expression"], sorted(file.name for file in licences))
PYTHON
env/bin/cotensor get large large.raw
[ "$(stat --format %s large.raw)" = 4194304 ]
env/bin/cotensor stop

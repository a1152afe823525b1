# Entry points for contributors. `make test` must pass before a change lands; `.ci/run` runs it and the slower checks.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
MIN_TESTS := 1750
TEST_STEPS := setup fmt lint deps unit doc loom

.PHONY: test test-steps $(TEST_STEPS) slowest-tests test-python test-ray test-torch test-conformance test-projects test-versions parity dist try-dist first-hour try-containers bench-peers bench-sizes bench-embeddings bench-low-bit test-gpu bench-gpu test-dashboard test-web bench-web web-demo docs bench bench-engine soak demo protocol \
  valgrind miri fuzz fuzz-short wasm test-aarch64

test: $(TEST_STEPS)

# Prints the steps of `make test`; `.ci/run` times each of them.
test-steps:
	@echo $(TEST_STEPS)

setup:
	@command -v cargo-nextest >/dev/null || $(CARGO) install --locked cargo-nextest

fmt:
	$(CARGO) fmt --all --check

lint:
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings

# Dependencies between the crates, import circles of files and of folders, and the paths that documents name.
deps:
	cd scripts && python3 -m unittest -q
	python3 scripts/check_dependencies.py
	python3 scripts/check_paths.py

# Fails when fewer than MIN_TESTS tests pass, so that a run that selects no tests fails too. Half of the time, tests wait for processes: three for two cores.
unit:
	@mkdir -p $(TARGET)
	$(CARGO) nextest run --workspace --no-tests=fail --no-fail-fast --test-threads $$(( ($$(nproc) * 3 + 1) / 2 )) 2>&1 | tee $(TARGET)/nextest.log
	@python3 scripts/check_test_count.py $(TARGET)/nextest.log $(MIN_TESTS)

# The slowest tests of the last `make unit`.
slowest-tests:
	@python3 scripts/check_test_count.py --slowest 15 $(TARGET)/nextest.log

doc:
	$(CARGO) test --workspace --doc --quiet
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet

# Regenerates the files in protocol/ from the code; a test compares them.
protocol:
	COTENSOR_WRITE_PROTOCOL=1 $(CARGO) test --workspace --test integration --quiet golden

# The Python package, without torch and with it. Each uses a virtual environment of its own below target/python.
test-python:
	scripts/test_python.sh numpy

test-ray:
	scripts/test_python.sh ray

test-torch:
	scripts/test_python.sh torch

# Offloaded operators, modules and optimizers beside PyTorch's, on the databases of its own tests (docs/explanation/conformance.md). CONFORMANCE are arguments, such
# as `--sample`, `operators --names exp` or, for random programs, `programs --minutes 30 --seed 1`. Not a part of CI, which runs a sample.
test-conformance:
	scripts/test_conformance.sh $(CONFORMANCE)

# The tests of other projects with offloaded models, beside the same tests on the simulated device (docs/explanation/conformance.md). They are downloaded. PROJECTS are
# arguments, such as `timm --files test_layers.py`. Not a part of CI.
test-projects:
	scripts/test_projects.sh $(PROJECTS)

# The Python package of this source with that of another commit, clients of one with the daemon of the other: docs/operate/versions.md. COMMIT names the
# other one. Not a part of CI: it builds the package twice.
test-versions:
	scripts/test_versions.sh $(COMMIT)

# Embeddings beside those of sentence-transformers: exporters, variants and engines; writes the tables of docs/explanation/parity.md. Fails if a row of float32 is
# above the bound and not refused. MODELS chooses models; FEW measures two layouts of float32 only. Results that exist are kept unless AGAIN is set, so
# that an interrupted run goes on without it. Takes an hour of two cores.
parity:
	scripts/parity.sh --write docs/explanation/parity.md $(if $(AGAIN),--again) $(if $(FEW),--few) $(MODELS)

# What a release needs, in target/dist: tarball, wheel and bill of materials for x86-64 and aarch64, checksums. try-dist installs them in new Debian
# systems; those for aarch64 run in qemu's emulator. Not a part of CI.
dist:
	scripts/dist.sh

try-dist:
	scripts/try_dist.sh

# What a new user types in the first hour, from the wheel of target/dist (or WHEEL) to an encoder that four processes share. A part of try-dist, too.
first-hour:
	scripts/first_hour.sh $(WHEEL)

# Containers that share the daemon's socket only, as in dist/compose.yaml, made of namespaces: needs no container engine. Builds all programs and examples
# of the workspace, with the features of its tests: a build of the one package would compile its dependencies again with others.
try-containers:
	$(CARGO) build --quiet --workspace --bins --examples
	scripts/try_containers.sh $(TARGET)/debug/cotensor

# The first connection, and the one model of a machine beside a model in each process and beside servers: memory and time of embeddings.
bench-embeddings:
	scripts/bench_embeddings.sh

# A trained decoder and a real encoder with weights of few bits, by `cotensor quantize` and by onnxruntime's own quantizer: divergence, perplexity, neighbours
# (docs/labs/low-bit.md). LOW_BIT are arguments, such as `--only decoder`. Takes half an hour of two cores.
bench-low-bit:
	CARGO="$(CARGO)" scripts/bench_low_bit.sh $(LOW_BIT)

# Compares Cotensor with other libraries in one run on this machine. Ray and torch are large downloads.
bench-peers:
	scripts/bench_peers.sh

# put, get and calls of 14 sizes beside a copy, shared_memory, a pipe, Ray and iceoryx2. SIZES are arguments, such as `--chart docs/explanation/sizes.svg`.
bench-sizes:
	BENCH=sizes scripts/bench_peers.sh $(SIZES)

# On a machine with a GPU, each in under nine minutes once the package is installed, with COTENSOR_BENCH_PYTHON if that is set (scripts/gpu.sh). Both ask
# scripts/gpu/questions.py first: how processes share memory of the device, and whether it survives them. Results are in target/gpu. test-gpu runs the
# Python tests that need a GPU; bench-gpu takes the figures of a store's tensors there, and those of models larger than the memory that they may use.
test-gpu:
	scripts/gpu.sh test
bench-gpu:
	scripts/gpu.sh bench

# The dashboard in a headless Chromium; installs Node and Chromium if they are missing.
test-dashboard:
	CARGO="$(CARGO)" scripts/test_dashboard.sh

# The browser package: builds web/dist, then tests it in Node, in a headless Chromium and in a headless Firefox, which it installs if they
# are missing.
test-web:
	CARGO="$(CARGO)" scripts/test_web.sh

# The browser package: lookups in Node; calls of the hub of all tabs, graphs, models beside transformers.js and tabs in Chromium.
bench-web:
	CARGO="$(CARGO)" scripts/bench_web.sh

# A page whose models share tensors on the visitor's GPU. MODELS names a folder with model folders, PORT the port.
web-demo:
	CARGO="$(CARGO)" scripts/build_web.sh
	node web/demo/serve.mjs $(if $(PORT),--port $(PORT)) $(if $(MODELS),--models $(MODELS))

# The site of the documents, in target/site; fails for a link to a page or a heading that does not exist. `scripts/site.sh serve` shows it.
docs:
	scripts/site.sh

# Model-checks every interleaving of the lease count and of the index slots.
loom:
	RUSTFLAGS="--cfg loom" $(CARGO) test -p cotensor-store --test loom --target-dir $(TARGET)/loom

# The criterion benches, then the figures of the whole system.
bench:
	$(CARGO) bench --workspace
	$(CARGO) run --release -p cotensor-soak -- figures --cycles 100000
	$(CARGO) run --release -- demo

# The fast engine beside plain onnxruntime, torch and plain loops, with their bounds. COTENSOR_BENCH_PYTHON names the interpreter of the peers.
bench-engine:
	$(CARGO) bench -p cotensor-demo --bench engine

# Kills clients and the daemon at random for SOAK_SECONDS, then runs SOAK_CYCLES cycles of put, get and release.
SOAK_SECONDS ?= 1800
SOAK_CYCLES ?= 1000000
soak:
	$(CARGO) build --release -p cotensor-soak
	$(CARGO) run --release -p cotensor-soak -- chaos --seconds $(SOAK_SECONDS) --client-kills $$(($(SOAK_SECONDS) * 5)) \
	  --daemon-kills $$(($(SOAK_SECONDS) / 6)) --supervisor-kills $$(($(SOAK_SECONDS) / 12)) --seed $$RANDOM
	$(CARGO) run --release -p cotensor-soak -- cycles --cycles $(SOAK_CYCLES) --seed $$RANDOM

demo:
	$(CARGO) run --release -- demo

# Searches for invalid accesses and leaks in the memory crate.
valgrind:
	scripts/valgrind.sh

# Fuzzes the parsers of untrusted bytes, each for SECONDS_EACH, from the inputs in fuzz/seeds and fixtures. RUSTC_BOOTSTRAP=1 makes a stable compiler accept cargo-fuzz's flags.
FUZZ_TARGETS := onnx pack pipeline image wav frame rpc tensor files journal quantized
SECONDS_EACH ?= 600
FUZZ_LENGTH ?= -max_total_time=$(SECONDS_EACH)
FUZZ_SEEDS_onnx := fuzz/seeds/onnx
FUZZ_SEEDS_quantized := fixtures/quantized
fuzz: export RUSTC_BOOTSTRAP := 1
fuzz:
	@command -v cargo-fuzz >/dev/null || $(CARGO) install --locked cargo-fuzz
	$(CARGO) fuzz build --sanitizer none
	$(foreach target,$(FUZZ_TARGETS),mkdir -p fuzz/corpus/$(target) && \
	  $(CARGO) fuzz run --sanitizer none $(target) fuzz/corpus/$(target) $(FUZZ_SEEDS_$(target)) -- $(FUZZ_LENGTH) -rss_limit_mb=4096 &&) true

# A fixed seed and number of inputs, so that the result of CI does not depend on chance.
fuzz-short:
	$(MAKE) fuzz FUZZ_LENGTH="-runs=50000 -seed=1"

# Needs a nightly toolchain with miri.
miri:
	$(CARGO) +nightly miri test -p cotensor-core -p cotensor-store --lib

# Builds the browser's crates for wasm32 and runs their unit tests in Node.
wasm:
	scripts/test_wasm.sh

# Builds unit tests for Linux on aarch64 and runs them in qemu's emulator of processes.
test-aarch64:
	scripts/test_aarch64.sh

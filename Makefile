# What a contributor runs. `make test` is everything that has to hold.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
CARGO ?= cargo
MIN_TESTS := 700

.PHONY: test setup fmt lint deps doc unit gate test-python test-torch bench-peers bench soak loom valgrind miri fuzz fuzz-short wasm demo protocol test-dashboard

test: setup fmt lint deps unit doc loom

setup:
	@command -v cargo-nextest >/dev/null || $(CARGO) install --locked cargo-nextest

fmt:
	$(CARGO) fmt --all --check

lint:
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings

# Dependencies between the crates, and import circles among the files of each.
deps:
	cd scripts && python3 -m unittest -q
	python3 scripts/check_dependencies.py

# The gate: a run of fewer tests than there were ever meant to be has not tested anything.
unit:
	$(CARGO) nextest run --workspace --no-tests=fail --no-fail-fast 2>&1 | tee target-nextest.log
	@python3 scripts/check_test_count.py target-nextest.log $(MIN_TESTS)
	@rm -f target-nextest.log

doc:
	$(CARGO) test --workspace --doc --quiet
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet

# The files in protocol/, from the code; a test compares them.
protocol:
	COTENSOR_WRITE_PROTOCOL=1 $(CARGO) test -p cotensor-client --test golden --quiet

# The Python package: first without torch, then with it. Each makes its own virtual environment below target/python.
test-python:
	scripts/test_python.sh numpy

test-torch:
	scripts/test_python.sh torch

# Cotensor and its peers in one run on this machine: ratios. Ray and torch are large downloads.
bench-peers:
	scripts/bench_peers.sh

# The daemon's page in a headless Chromium; installs what it needs.
test-dashboard:
	CARGO="$(CARGO)" scripts/test_dashboard.sh

# Every interleaving of the lease count, and of the slots of the index.
loom:
	RUSTFLAGS="--cfg loom" $(CARGO) test -p cotensor-store --test loom --target-dir $${CARGO_TARGET_DIR:-target}/loom

# The criterion benches, then the figures of the whole system.
bench:
	$(CARGO) bench --workspace
	$(CARGO) run --release -p cotensor-soak -- figures --cycles 100000
	$(CARGO) run --release -- demo

# Clients and daemon killed at random for SOAK_SECONDS, then CYCLES of put, get and release: what the short tests do, long.
SOAK_SECONDS ?= 1800
SOAK_CYCLES ?= 1000000
soak:
	$(CARGO) build --release -p cotensor-soak
	$(CARGO) run --release -p cotensor-soak -- chaos --seconds $(SOAK_SECONDS) --client-kills $$(($(SOAK_SECONDS) * 5)) \
	  --daemon-kills $$(($(SOAK_SECONDS) / 6)) --seed $$RANDOM
	$(CARGO) run --release -p cotensor-soak -- cycles --cycles $(SOAK_CYCLES) --seed $$RANDOM

demo:
	$(CARGO) run --release -- demo

# Leaks and invalid accesses of the crate that maps memory.
valgrind:
	scripts/valgrind.sh

# The parsers of untrusted bytes, SECONDS each. cargo-fuzz wants nightly's flags; RUSTC_BOOTSTRAP=1 lets a stable toolchain take them.
FUZZ_TARGETS := onnx pack pipeline image wav frame rpc tensor files ledger
SECONDS_EACH ?= 600
FUZZ_LENGTH ?= -max_total_time=$(SECONDS_EACH)
fuzz:
	@command -v cargo-fuzz >/dev/null || $(CARGO) install --locked cargo-fuzz
	for target in $(FUZZ_TARGETS); do \
	  RUSTC_BOOTSTRAP=1 $(CARGO) fuzz run --sanitizer none $$target -- $(FUZZ_LENGTH) -rss_limit_mb=4096; \
	done

# The same inputs every time: what CI says of a change does not depend on luck.
fuzz-short:
	$(MAKE) fuzz FUZZ_LENGTH="-runs=50000 -seed=1"

# Needs a nightly toolchain with miri; cannot be installed everywhere.
miri:
	$(CARGO) +nightly miri test -p cotensor-core -p cotensor-store --lib

# The browser's crates build for wasm32 (needs that target).
wasm:
	$(CARGO) build -p cotensor-core -p cotensor-store --target wasm32-unknown-unknown

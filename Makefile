# Thin lines over cargo, maturin, pytest and the scripts they name. `make` alone says what there is.

.DEFAULT_GOAL := help
.PHONY: help demo test soak asan peers bench lint clean-demo setup photographs videos build wheel

python := $(CURDIR)/.venv/bin/python
target := $(or $(CARGO_TARGET_DIR),target)
# The whole workspace with the same features each time, so that demo, tests and bench share every dependency's one build.
workspace := --release --locked --workspace --features framecache/cli

# The Python module has no Rust tests; built by cargo and by maturin in turn it would be built anew each time.
tested := $(workspace) --exclude framecache-python

# Named for every cargo run alike: a change of it would build the Python module again.
export PYO3_PYTHON := $(python)

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: setup photographs videos build wheel ## real photographs and clips: plain loaders, then one node, cold and warm
	@$(python) bench/demo/run.py --binaries $(target)/release --out demo-out

test: setup ## every behaviour at small size: Rust, documentation, Python
	cargo test $(tested) --all-targets
	cargo test $(tested) --doc
	@$(MAKE) --no-print-directory wheel
	$(python) -m pytest -q -rs -m "not soak and not peers" client/python/tests

# One test at a time: what is counted and timed at full size is counted on a machine that nothing else keeps busy.
soak: asan ## the tests of full size and duration
	FRAMECACHE_SOAK=1 RUST_TEST_THREADS=1 cargo test $(tested) --all-targets
	@$(MAKE) --no-print-directory wheel
	FRAMECACHE_SOAK=1 FRAMECACHE_TEST_PICTURES=10000 $(python) -m pytest -q -m "not peers" client/python/tests

# The sanitizer is an unstable option of this same compiler. The nodes are those of `build`: their decoders' address space is bounded, and
# a sanitizer needs more of it than there is.
asan: host = $(shell rustc -vV | sed -n 's/^host: //p')
asan: setup build ## batches through joins, crashes and lost packets, under an address sanitizer
	RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address cargo test $(tested) --target $(host) --target-dir $(target)/asan \
		--test faults --test memory --no-run
	cp --remove-destination $(target)/release/framecache-node $(target)/asan/$(host)/release/
	RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=0 cargo test $(tested) --target $(host) \
		--target-dir $(target)/asan --test faults --test memory -- batch quic::random

peers: setup wheel ## the tests that need heavy third-party packages (gigabytes: torch)
	@tests/setup.sh tests/requirements-peers.txt
	$(python) -m pytest -q -m peers client/python/tests

bench: setup build ## list the benchmarks; NAME=... runs one
	@$(target)/release/framecache-bench $(if $(NAME),run $(NAME),list)

lint: setup ## formatting and lints: Rust, Python, shell
	@tests/setup.sh tests/requirements-lint.txt
	cargo fmt --all --check
	cargo clippy $(workspace) --all-targets -- -D warnings
	.venv/bin/ruff check bench client tests
	.venv/bin/ruff format --check bench client tests
	.venv/bin/shellcheck tests/setup.sh tests/gpu.sh .ci/run

clean-demo: ## remove the demo's pictures and results
	rm -rf .build/demo demo-out

setup:
	@tests/setup.sh

# Before anything is built: without its photographs the demo says so at once.
photographs: setup
	@$(python) bench/demo/photographs.py .build/demo/photographs

# Without its videos the demo says so, and shows the photographs alone.
videos: setup
	@$(python) bench/demo/videos.py .build/demo/videos

build: setup
	cargo build $(workspace) --bins

# The wheel as users get it, installed as users install it: what the source tree holds beside it cannot help a test to pass.
wheel: setup
	@rm -rf .build/wheels
	.venv/bin/maturin build --release --locked --compatibility linux --interpreter $(python) \
		--manifest-path client/python/Cargo.toml --out .build/wheels
	@$(python) -m pip install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall .build/wheels/*.whl

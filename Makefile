# Pullback: make demo, make test. `make help` lists the rest.

PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=

BIN := $(VENV)/bin
UNFINISHED := $(VENV)/.unfinished
WANTED := pyproject.toml constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DELETE_ON_ERROR:
.PHONY: help demo test lint bench browser clean python

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' Makefile
	@echo "Variables: PYTHON=$(PYTHON) VENV=$(VENV) PIP_ARGS= PYTEST_ARGS= DEMO_ARGS= BENCH_ARGS="

demo: $(VENV)/.demo ## Jacobians of a small network on scikit-learn's handwritten digits
	$(BIN)/python examples/digits.py $(DEMO_ARGS)

test: $(VENV)/.test ## the whole test suite, one process for each core
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n auto $(PYTEST_ARGS)

lint: $(VENV)/.lint ## style, types, and which floor imports which
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

browser: ## Chromium, in which the pages are tested; without it those tests are skipped
	@command -v chromium >/dev/null || { \
	  echo "Installing Debian's chromium (needs root)."; apt-get update -q && apt-get install -y -q chromium; }

bench: $(VENV)/.bench ## the benchmarks
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

clean: ## remove the environment and everything that was made
	rm -rf $(VENV) out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---------------------------------------------------------------------------------------------------------
# The environment. A stamp is written only after its install has succeeded, so a second `make` installs nothing.
# An install that was cut short leaves $(UNFINISHED) behind: half-written packages can look whole to pip, so the
# next `make` starts the environment again.

ifneq ($(wildcard $(UNFINISHED)),)
.PHONY: $(VENV)/.made
endif

$(VENV)/.made: | python
	@if [ -e $(UNFINISHED) ]; then echo "The last install was cut short: starting $(VENV) again."; rm -rf $(VENV); fi
	@mkdir -p $(VENV) && touch $(UNFINISHED)
	$(PYTHON) -m venv $(VENV)
	@touch $@ && rm -f $(UNFINISHED)

$(VENV)/.demo $(VENV)/.test $(VENV)/.lint $(VENV)/.bench: $(VENV)/.%: $(VENV)/.made $(WANTED)
	@touch $(UNFINISHED)
	$(BIN)/python -m pip install $(PIP_ARGS) -c constraints.txt -e '.[$*]'
	@touch $@ && rm -f $(UNFINISHED)

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Pullback needs Python 3.11 or newer; '$(PYTHON)' is `$(PYTHON) --version 2>&1 || true`."; \
	  echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }

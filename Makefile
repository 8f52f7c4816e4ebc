# Every target makes .venv when it is missing and installs what it needs, once per change of pyproject.toml.
# Choose the interpreter with `make PYTHON=...`; pip's own settings (PIP_INDEX_URL, ...) are respected.

ifndef PYTHON
PYTHON := $(shell for p in python3.11 python3; do "$$p" -c "" 2>/dev/null && { echo "$$p"; break; }; done)
endif

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet
TORCH := $(shell sed -n 's/^ *"\(torch[<>=][^"]*\)".*/\1/p' pyproject.toml)

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL: # two pips in one venv would race
.PHONY: help demo test test-flower test-slow browser fuzz wheel matrix lint fmt types imports house lock \
	audit-deps docs bench bench-peers clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.stamp-demo ## Five problems and what answers them, on real digits, as one page
	$(BIN)/fedquilt demo

test: $(VENV)/.stamp-dev ## Run the quick tests
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

test-flower: $(VENV)/.stamp-dev ## Run the tests that start a federation of real processes
	$(BIN)/pytest -n 2 --dist loadfile -m "flower and not slow" $$(grep -l mark.flower tests/flower/*.py)

test-slow: $(VENV)/.stamp-dev $(VENV)/.stamp-simulation ## Run what takes minutes: killed federations, Ray's simulation (a large download)
	$(BIN)/pytest -m slow tests
	$(BIN)/pytest -m flower tests/flower/test_simulation.py

browser: $(VENV)/.stamp-dev $(VENV)/.stamp-browser ## Test the report and the watch page in the Chromium of the system
	$(BIN)/pytest -m browser tests/browser

fuzz: $(VENV)/.stamp-dev ## Mutate a million frames and 200,000 recipes (half an hour on two cores; the tests have a short form)
	$(BIN)/python tests/fuzz/fuzz.py --frames 1000000 --configs 200000

wheel: ## Build sdist and wheel into dist/, install the wheel in a clean environment and use it there
	PYTHON="$(PYTHON)" tests/release/clean_install.sh

matrix: ## Run the quick tests on Python 3.11, 3.12 and 3.13, with the oldest and the newest torch (large downloads)
	"$(PYTHON)" tests/release/matrix.py

lint: $(VENV)/.stamp-dev ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

fmt: $(VENV)/.stamp-dev ## Fix what lint can fix by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.stamp-dev ## Check types on src
	$(BIN)/mypy

imports: $(VENV)/.stamp-dev ## Check which room may import which
	$(BIN)/lint-imports

house: $(VENV)/.stamp-dev ## Print what the code is like, in numbers: a report, not a check
	$(BIN)/python benchmarks/house.py

lock: | $(BIN)/python ## Write requirements-dev.lock anew: the versions that the tests are run with
	$(PIP) "uv>=0.5"
	$(BIN)/uv pip compile --quiet --upgrade --python $(BIN)/python --extra dev --extra docs --strip-extras --no-annotate \
		--no-header --no-emit-index-url pyproject.toml \
		| sed -e 's/+cpu$$//' -e '/^\(nvidia-\|cuda-\|triton\)/d' > requirements-dev.lock

audit-deps: | $(BIN)/python ## Ask the advisory service of pip-audit about every version of requirements-dev.lock
	$(PIP) "pip-audit>=2.7"
	$(BIN)/pip-audit --requirement requirements-dev.lock --no-deps --disable-pip

docs: $(VENV)/.stamp-docs ## Build the documentation into site/
	$(BIN)/mkdocs build --strict

bench: $(VENV)/.stamp-demo ## Measure speed and memory
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/codecs.py
	$(BIN)/python benchmarks/metering.py
	$(BIN)/python benchmarks/scale.py

bench-peers: $(VENV)/.stamp-demo ## Measure beside Flower and pfl-research (makes their environments)
	$(BIN)/python benchmarks/peers/run.py

clean: ## Remove .venv, caches and built files (runs/ stays)
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(BIN)/python:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "fedquilt needs Python 3.11 or newer, found '$(PYTHON)'. Try: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)

# torch goes in alone, so that its build is chosen by its own bound and not by what other packages ask for.
$(VENV)/.stamp-torch: pyproject.toml | $(BIN)/python
	$(PIP) "$(TORCH)"
	@touch $@

# dev, demo, docs, browser, simulation: the extras of pyproject.toml; the tests run with the versions of the lock, but
# for torch, whose build is already there.
$(VENV)/.stamp-dev: pyproject.toml requirements-dev.lock $(VENV)/.stamp-torch
	sed '/^torch\(vision\)\{0,1\}==/d' requirements-dev.lock > $(VENV)/constraints.txt
	$(PIP) -c $(VENV)/constraints.txt -e ".[dev]"
	@touch $@

$(VENV)/.stamp-%: pyproject.toml $(VENV)/.stamp-torch
	$(PIP) -e ".[$*]"
	@touch $@

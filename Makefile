# Two commands: `make demo` and `make test`. Both set up everything they need, and do nothing twice.
# Compiled modules are kept, whatever the environment says: each run would compile everything again.
export PYTHONDONTWRITEBYTECODE :=
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help demo test check format test-slow bench clean

help:           ## this list
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*## / — /'

demo: $(VENV)/.demo ## a real local model answers through this client: no key, no account
	@$(BIN)/asyncchat demo

# Three processes: one runs what measures time and crowds or asks a real model, so that no two of these meet; one runs what
# starts programs, browsers and servers, and mostly waits; the last runs all the rest, wherever it is. Ctrl-C goes to all, and
# the shell outlives it and waits for them: once more where Ctrl-C broke off the first wait.
MEASURING := tests/endpoints tests/faults tests/local tests/storms
STARTING  := tests/batch tests/bridges tests/cli tests/examples tests/web

test: check $(VENV)/.model ## everything a change has to pass
	@trap : INT; \
	$(PYTEST) -m "not slow" $(MEASURING) > $(VENV)/measuring.txt 2>&1 & measuring=$$!; \
	$(PYTEST) -m "not slow" $(STARTING) > $(VENV)/starting.txt 2>&1 & starting=$$!; \
	$(PYTEST) -m "not slow" $(MEASURING:%=--ignore=%) $(STARTING:%=--ignore=%); failed=$$?; \
	wait $$measuring || wait $$measuring || failed=1; wait $$starting || wait $$starting || failed=1; \
	cat $(VENV)/measuring.txt $(VENV)/starting.txt; exit $$failed

check: $(VENV)/.dev ## lint, types, floors
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/basedpyright --level error & $(BIN)/mypy --no-error-summary; mypy=$$?; wait $$! && exit $$mypy
	@$(BIN)/lint-imports --no-cache > $(VENV)/floors.txt || { cat $(VENV)/floors.txt; exit 1; }

test-slow: $(VENV)/.model ## storms and other full-size runs (ten minutes at most)
	@trap : INT; $(PYTEST) -m slow $(STARTING) > $(VENV)/starting.txt 2>&1 & starting=$$!; \
	$(PYTEST) -m slow $(STARTING:%=--ignore=%); failed=$$?; \
	wait $$starting || wait $$starting || failed=1; cat $(VENV)/starting.txt; exit $$failed

format: $(VENV)/.dev ## let the formatter and the linter mend what they can
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format --quiet .

bench: $(VENV)/.bench ## side by side with bare aiohttp and openai; prints ratios
	@for b in parse stream request pool structured batch; do $(BIN)/python -m benchmarks.bench_$$b || exit 1; done

clean:          ## remove the environment
	rm -rf $(VENV)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(PIP) install -e ".[cli,local]"
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(PIP) install -e ".[dev]"
	@touch $@ $(VENV)/.demo

$(VENV)/.model: $(VENV)/.dev
	@$(BIN)/asyncchat local install
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) install -e ".[bench]"
	@touch $@

# Every target works on a fresh clone: `env` makes the virtual environment when it is missing or its pins changed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
SOURCES := sgl_epd router python benchmark test 3rdparty

.DEFAULT_GOAL := help
.PHONY: help env demo test lint types floors unit integration srt gpu format clean

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

env:  ## the virtual environment with everything in it
	@$(PYTHON) 3rdparty/setup_env.py --venv $(VENV)

demo: env  ## real SGLang encode, prefill and decode workers answer image questions
	@$(BIN)/python -m sgl_epd.demo

test: env lint types floors unit integration srt gpu  ## everything that CI runs

lint: env  ## ruff
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/ruff format --check $(SOURCES)

types: env  ## mypy
	@$(BIN)/mypy

floors: env  ## imports point only downwards
	@$(BIN)/lint-imports

unit: env  ## no network, no engine
	@$(PYTEST) test/unit --ignore test/unit/transfer
	@# On its own: Mooncake's library and torch in one process end it with a segmentation fault at exit.
	@$(PYTEST) test/unit/transfer

integration: env  ## router and emulated workers on loopback
	@$(PYTEST) test/integration

srt: env  ## real SGLang with Mooncake TCP
	@$(PYTEST) test/srt

gpu: env  ## skipped without a GPU
	@$(PYTEST) test/gpu

format: env  ## let ruff rewrite the sources
	@$(BIN)/ruff check --fix $(SOURCES)
	@$(BIN)/ruff format $(SOURCES)

clean:  ## remove what the targets made, but not the environment
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache logs

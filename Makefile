# Sets everything up in .venv and runs it. Needs Python 3.11 or newer, git, make and a package index.
#   make run           start the service, walk the tour, serve until Ctrl-C    (ONCE=1: stop after the tour)
#   make test          all tests
#   make lint          ruff and mypy
#   make bench         the benchmarks' tables and plots, about 20 minutes on two cores (OUT=folder, LOCOMO=conversations.jsonl)
#   make bench-full    every scenario, seed and size: hours
#   make load          the load tests' tables and plots, about 20 minutes              (OUT=folder)
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup run test lint bench bench-full load lock

PYTHON ?= python3
BIN := .venv/bin
LOG ?= tests/data/BGL_2k.log
PACKAGES := policies actors cluster deploy
LINKS := $(PACKAGES:%=.links/muniment/%)

help:
	@sed -n 's/^#   //p' $(firstword $(MAKEFILE_LIST))

setup: .venv/.installed $(LINKS)

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with: make PYTHON=…"; exit 1; }
	@$(PYTHON) -m venv .venv

.venv/.installed: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing into .venv; the first time this takes some minutes"
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --quiet \
		--constraint constraints.txt --editable '.[dev]'
	@touch $@

# Type checkers know the packages by their full names through these.
.links/muniment/%:
	@mkdir -p $(@D)
	@ln -sfn ../../$* $@

run: export MUNIMENT_DATA_DIR := $(or $(MUNIMENT_DATA_DIR),$(CURDIR)/.data)
run: setup
	@exec $(BIN)/muniment demo --log $(LOG) $(if $(PORT),--port $(PORT)) $(if $(ONCE),--once)

test: setup
	$(BIN)/python -m pytest $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=.links $(BIN)/mypy $(PACKAGES:%=-p muniment.%)

bench bench-full: setup
	$(BIN)/python -m tests.bench.all --out $(or $(OUT),bench) $(if $(LOCOMO),--locomo $(LOCOMO)) \
		--size $(if $(filter bench-full,$@),full,usual)

load: LOAD = $(BIN)/python -m tests.load.run $(1) --plots $(or $(OUT),load) --out $(or $(OUT),load)/$(2).json
load: setup
	$(call LOAD,overload,overload)
	$(call LOAD,sweep --via handle,handles)
	$(call LOAD,burst,burst)
	$(call LOAD,steady --nodes 3,nodes)
	$(call LOAD,soak --kill-every 45,soak)

# After a change of what pyproject.toml asks for: pins what is installed now. A build tag such as +cpu is left out.
lock: setup
	$(BIN)/python -m pip freeze --exclude-editable --exclude pip --exclude setuptools \
		| sed -e 's/+.*//' -e '/^#/d' -e '/ @ /d' > constraints.txt
	@touch .venv/.installed

# `make demo` and `make test` set up everything they need by themselves; `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 4
WORLDS ?= 200
SHELL_SCRIPTS = .ci/run .ci/need $(shell grep -rlIE '^\#!.*\b(sh|bash)\b' systemd flashd bootstrap)
LOCK = $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-header --no-annotate

.PHONY: help venv lock lint lint-style lint-types lint-imports lint-dependencies lint-shell format test simulate demo wheel install-check clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(READY) ## .venv with the locked dependencies and flashd itself

$(READY): requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "flashd needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || .ci/need --package python3-venv
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

lock: ## write both locks anew from pyproject.toml (UPGRADE=--upgrade for the newest releases)
	@test -x $(BIN)/uv || { $(PYTHON) -m venv $(VENV) && $(BIN)/pip install --quiet uv; }
	$(LOCK) $(UPGRADE) --output-file requirements.lock
	$(LOCK) $(UPGRADE) --extra fast --group dev --output-file requirements-dev.lock

lint: lint-style lint-types lint-imports lint-dependencies lint-shell ## every static check (make -k lint: do not stop)

lint-style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet . || { echo "run: make format" >&2; exit 1; }

lint-types: $(READY)
	$(BIN)/mypy

lint-imports: $(READY)
	$(BIN)/lint-imports

lint-dependencies: $(READY)
	$(BIN)/deptry . --no-ansi

lint-shell:
	@.ci/need shellcheck shellcheck
	shellcheck $(SHELL_SCRIPTS)

format: $(READY) ## let ruff lay out the code and mend what it can
	$(BIN)/ruff check --fix-only --quiet . && $(BIN)/ruff format .

test: $(READY) ## all tests (ARGS="-k name" narrows them)
	@.ci/need redis-server redis-server
	$(BIN)/pytest -n $(WORKERS) $(ARGS)

simulate: $(READY) ## all simulated worlds: 200 seeds, scenarios, planted bugs (ARGS="-k seed"; WORLDS=n)
	FLASHD_WORLDS=$(WORLDS) $(BIN)/pytest -n $(WORKERS) tests/simulation $(ARGS)

demo: $(READY) ## everything on this machine, no account, no money (ARGS="--keep" or "--crash")
	$(BIN)/flashd demo $(ARGS)

wheel: $(READY) ## dist/flashd-*.whl
	rm -rf dist && $(BIN)/hatchling build --target wheel

install-check: wheel ## install the wheel from the runtime lock into a fresh environment of $(PYTHON)
	rm -rf .make/install && $(PYTHON) -m venv .make/install
	.make/install/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	.make/install/bin/pip install --quiet --disable-pip-version-check --no-deps --no-index dist/flashd-*.whl
	cd .make/install && bin/python --version && bin/python -m pip check && bin/flashd --help >/dev/null

clean: ## remove what the targets above made, .venv included
	rm -rf $(VENV) .make dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage*

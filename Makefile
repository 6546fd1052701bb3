# Every target works on a fresh clone: it makes .venv first.
PYTHON ?= python3
BIN := .venv/bin
# Python compiles modules when they are first imported, unless it may not write them; compiling all of them takes half of
# an installation's time.
INSTALL := -m pip install -q $(if $(PYTHONDONTWRITEBYTECODE),,--no-compile)

.PHONY: quickstart notebooks check test test-slow test-oldest schema docs clean

quickstart: .venv/installed
	$(BIN)/bertpre quickstart

notebooks: .venv/installed-notebooks
	$(BIN)/python notebooks/execute.py

test: .venv/installed-test
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

test-slow: .venv/installed-test
	$(BIN)/python -m pytest -m slow

test-oldest: .venv-oldest/installed
	.venv-oldest/bin/python -m pytest -n auto --maxprocesses 4 --dist worksteal

check: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy bertpre

schema: .venv/installed
	$(BIN)/python -c "from bertpre.recipe import json_schema; print(json_schema(), end='')" > recipes/schema.json

docs: .venv/installed-docs
	$(BIN)/python docs/generate.py
	$(BIN)/mkdocs build --strict

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python $(INSTALL) -c constraints.txt -e .
	touch $@

.venv/installed-test: .venv/installed
	$(BIN)/python $(INSTALL) -c constraints.txt -e ".[test]"
	touch $@

.venv/installed-notebooks: .venv/installed
	$(BIN)/python $(INSTALL) -c constraints.txt -e ".[notebooks]"
	touch $@

.venv/installed-docs: .venv/installed
	$(BIN)/python $(INSTALL) -c constraints.txt -e ".[docs]"
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/python $(INSTALL) -c constraints.txt -e ".[dev]"
	touch .venv/installed-test $@  # dev includes test

.venv-oldest/installed: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv --clear .venv-oldest
	.venv-oldest/bin/python $(INSTALL) -c constraints-oldest.txt -e ".[test]"
	touch $@

clean:
	rm -rf .venv .venv-oldest build *.egg-info

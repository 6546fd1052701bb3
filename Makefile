# `make quickstart` and `make test` work on a fresh clone: each makes .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: quickstart test test-slow lint clean

quickstart: .venv/installed
	$(BIN)/bertpre quickstart

test: .venv/installed-test
	$(BIN)/python -m pytest -n auto --dist worksteal

test-slow: .venv/installed-test
	$(BIN)/python -m pytest -m slow

lint: .venv/installed
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[dev]"
	$(BIN)/ruff check .

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt -e .
	touch $@

.venv/installed-test: .venv/installed
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[test]"
	touch $@

clean:
	rm -rf .venv build *.egg-info

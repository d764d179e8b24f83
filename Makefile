# make demo and make test are all a newcomer needs; both make .venv first.
PYTHON ?= python3
PIP = .venv/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint types soak bench clean

demo: .venv/demo
	.venv/bin/python examples/demo.py

test: .venv/dev lint types
	.venv/bin/pytest -m "not soak"

soak: .venv/dev
	.venv/bin/pytest -m soak --timeout 1200 -s

lint: .venv/dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: .venv/dev
	.venv/bin/mypy

bench: .venv/dev
	.venv/bin/python benchmarks/all.py

.venv/python:
	$(PYTHON) -m venv .venv
	$(PIP) torch
	touch $@

.venv/demo: .venv/python pyproject.toml
	$(PIP) --editable ".[progress]"
	touch $@

.venv/dev: .venv/python pyproject.toml constraints.txt
	$(PIP) --editable ".[dev]"
	touch $@ .venv/demo

clean:
	rm -rf .venv build dist

# make demo and make test are all a newcomer needs; both make .venv first.
PYTHON ?= python3
PIP = .venv/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint types soak fuzz bench clean

demo: .venv/demo
	.venv/bin/python examples/demo.py

# Three tests at a time, since many wait; without cached bytecode each of their many processes would compile the package anew.
test soak: export PYTHONDONTWRITEBYTECODE =
test: .venv/dev lint types
	.venv/bin/pytest -m "not soak" --numprocesses 3 --dist worksteal

soak: .venv/dev
	.venv/bin/pytest -m soak --timeout 1200 --numprocesses 3 --dist worksteal --ignore tests/soak
	.venv/bin/pytest -m soak --timeout 1200 -s tests/soak

lint: .venv/dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: .venv/dev
	.venv/bin/mypy

fuzz: .venv/dev
	$(PIP) --editable ".[fuzz]"
	cd tests && ../.venv/bin/python -m fuzz.inputs ../build/fuzz/real
	mkdir -p build/fuzz/found
	cd tests && ../.venv/bin/python -m fuzz.fuzz_frames -max_total_time=600 -max_len=60000 -rss_limit_mb=3000 \
		-timeout=10 -artifact_prefix=../build/fuzz/ ../build/fuzz/found ../build/fuzz/real fuzz/corpus

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

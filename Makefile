# Start with make demo and make test. Both create .venv first. make test-more runs the slower tests.
PYTHON ?= python3
# Extras that the tests of make test use if they are installed. CI tests each extra in a job of its own.
EXTRAS ?= progress,sb3,torchrl,export,tensorboard,ray,datasets,eval
PIP = .venv/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test pytest test-more test-portable test-lowest lint types soak fuzz bench clean

demo: .venv/demo
	.venv/bin/python examples/demo.py

# Many tests wait, so three run at a time. They need cached bytecode: without it, each of their processes would compile
# the package again.
pytest test-more test-portable soak: export PYTHONDONTWRITEBYTECODE =
test: lint types pytest

pytest: .venv/dev
	.venv/bin/pytest -m "not more and not soak" --numprocesses 4 --dist worksteal

# Tests that must also pass on every commit but take longer.
test-more: .venv/dev
	.venv/bin/pytest -m "more and not soak" --numprocesses 4 --dist worksteal

# The tests of make test on the layer for any POSIX system, without the calls that macOS lacks.
test-portable: .venv/dev
	PARENV_PLATFORM=posix PYTHONPATH=$(CURDIR)/tests/portable .venv/bin/pytest -m "not more and not soak and not linux" \
		--numprocesses 4 --dist worksteal

# The main features and each extra, with the lowest version of each dependency that parenv declares. LOWEST=sb3 tests
# only this extra, LOWEST=base none. The oldest torch is a CUDA build of several gigabytes on Linux.
test-lowest:
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python tests/extras.py --lowest $(LOWEST)

# Last, and alone: the hundred million rounds occupy all cores for an hour and a half.
WAKE_UP = tests/unit/test_wake_up.py

soak: .venv/dev
	$(PIP) --group vector-envs --group loggers
	.venv/bin/pytest -m "not soak" tests/process/test_loggers.py tests/process/test_jax.py tests/process/test_libraries_of_vector_envs.py
	.venv/bin/pytest -m soak --timeout 1200 --numprocesses 4 --dist worksteal --ignore tests/soak --deselect $(WAKE_UP)
	.venv/bin/pytest -m soak --timeout 1200 -s tests/soak
	.venv/bin/pytest -m soak $(WAKE_UP)

lint: .venv/dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/vermin --target=3.6- --no-tips parenv/process/served_envs.py
	.venv/bin/python tests/prose.py parenv README.md ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md SECURITY.md RELEASING.md CODE_OF_CONDUCT.md \
		docs examples benchmarks

# Modules for worker processes raise on Windows, so mypy knows nothing of their names there.
types: .venv/dev
	.venv/bin/mypy
	.venv/bin/mypy --platform darwin --cache-dir .mypy_cache/darwin
	.venv/bin/mypy --platform win32 --cache-dir .mypy_cache/win32 --no-warn-unreachable --no-warn-unused-ignores \
		--disable-error-code has-type

fuzz: .venv/dev
	$(PIP) --group fuzz
	cd tests && ../.venv/bin/python -m fuzz.inputs ../build/fuzz
	mkdir -p build/fuzz/found
	cd tests && ../.venv/bin/python -m fuzz.fuzz_frames -max_total_time=600 -max_len=60000 -rss_limit_mb=3000 \
		-timeout=10 -artifact_prefix=../build/fuzz/ ../build/fuzz/found ../build/fuzz/real ../build/fuzz/corpus

bench: .venv/dev
	.venv/bin/python benchmarks/all.py

.venv/python:
	$(PYTHON) -m venv .venv
	$(PIP) "pip>=25.1" torch  # Earlier versions do not support dependency groups.
	touch $@

.venv/demo: .venv/python pyproject.toml
	$(PIP) --editable ".[progress]"
	touch $@

.venv/dev: .venv/python pyproject.toml constraints.txt
	$(PIP) --group dev --editable ".[$(EXTRAS)]"
	touch $@ .venv/demo

clean:
	rm -rf .venv .venv-lowest build dist

.PHONY: docs
docs: .venv/dev
	.venv/bin/sphinx-build --fail-on-warning --keep-going --fresh-env --quiet docs build/docs

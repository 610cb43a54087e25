# Each target makes its own virtual environment; Python 3.11 or newer and a package registry are all it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-test
DOCS_STAMP := $(VENV)/.installed-docs
export TF_CPP_MIN_LOG_LEVEL ?= 2
# Each module is compiled once, not by every process that a test starts.
export PYTHONDONTWRITEBYTECODE =
# Neighbors stay in one process, where they share what was compiled.
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist worksteal

.PHONY: demo test test-all test-crash mutants lint docs dist bench-gpu clean

demo: $(STAMP)
	$(BIN)/lipdp train --dataset digits --epsilon 4 --output runs/demo --overwrite
	@echo "Open runs/demo/report.html; the privacy statement is runs/demo/privacy.txt."

# Quicker than what users run, which `test-all` tests: each process keeps to one core, since there are as many as cores,
# and JAX does not optimize, which takes longer than it saves where a program runs once.
test: export OMP_NUM_THREADS = 1
test: $(STAMP) lint
	TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1 KERAS_BACKEND=tensorflow $(PYTEST)
	XLA_FLAGS="--xla_backend_optimization_level=0 $(XLA_FLAGS)" KERAS_BACKEND=jax $(PYTEST) -m "not slow and not backend_free"

# New processes for each folder: TensorFlow keeps the graph of every `fit`, and those of all tests need more than 24 GiB.
PARTS := $(sort $(dir $(wildcard tests/*/test_*.py))) "$(wildcard tests/test_*.py)"
test-all: $(STAMP) lint
	failed=0; for backend in tensorflow jax; do for part in $(PARTS); do \
		KERAS_BACKEND=$$backend $(PYTEST) -m "" $$part || failed=1; \
	done; done; exit $$failed

test-crash: $(STAMP)
	$(BIN)/python -m tests.crash.kills --kills 200

mutants: $(STAMP)
	$(BIN)/python -m tests.mutations --jobs 2

# On a machine with a GPU; jax[cuda13] and jax-privacy have to be installed beside.
bench-gpu: $(STAMP)
	KERAS_BACKEND=jax $(BIN)/python benchmarks/gpu.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

dist: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

docs: $(DOCS_STAMP)
	$(BIN)/mkdocs build --strict
	@echo "Open build/site/index.html."

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e ".[test]"
	touch $@

$(DOCS_STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e ".[docs]"
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache

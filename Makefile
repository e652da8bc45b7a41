# `make demo` and `make test` are all a newcomer needs; both set up what they use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export OMP_NUM_THREADS := 1

.PHONY: demo test lint types test-quick test-long faults benchmark clean

demo: $(READY)
	$(BIN)/perdure demo

test: lint types test-quick

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: $(READY)
	$(BIN)/mypy

test-quick: $(READY)
	$(BIN)/pytest -q -n 2 --dist loadfile --durations 8

test-long: $(READY)
	$(BIN)/pytest -q -n 2 --dist loadfile -m "slow and not faults"

faults: $(READY)
	$(BIN)/pytest -q tests/faults -m "faults or not slow" --durations 20

benchmark: $(READY)
	$(BIN)/python benchmarks/cpu_step.py
	$(BIN)/python benchmarks/checkpoints.py
	$(BIN)/python benchmarks/grid.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

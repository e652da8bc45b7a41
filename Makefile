# Every target installs what it needs into .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOWEST := .venv-lowest
export OMP_NUM_THREADS := 1
# Without bytecode, every process that the tests start would compile perdure, and pytest the tests.
unexport PYTHONDONTWRITEBYTECODE
# Measures coverage at little cost; Python 3.11 does not have it.
export COVERAGE_CORE := $(shell $(PYTHON) -c 'import sys; print("sysmon" if sys.version_info >= (3, 12) else "ctrace")')

.PHONY: demo test lint types test-quick coverage test-long test-lowest faults mutants benchmark docs docs-serve clean

demo: $(VENV)/.installed
	$(BIN)/perdure demo
	@echo
	@echo "What to try next:"
	@echo "  source $(BIN)/activate               make the perdure command available"
	@echo "  perdure run mnist-360 --method derpp    train another method on another stream"
	@echo "  perdure report runs -o report.html      put all runs so far on one page"
	@echo "  perdure run --help                      see all options"
	@echo "  docs/own-data.md                        use your own data and network"

test:
	$(MAKE) --no-print-directory -j 3 lint types test-quick

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: $(VENV)/.installed-dev
	$(BIN)/mypy

test-quick: $(VENV)/.installed-dev
	$(BIN)/pytest -q -n 2 --dist worksteal --durations 8

# On Python 3.11, it takes half as long again as test-quick.
coverage: $(VENV)/.installed-dev
	$(BIN)/pytest -q -n 2 --dist worksteal --cov --cov-report=
	@echo "Line coverage of src/perdure: $$($(BIN)/coverage report --format=total) %"

test-long: $(VENV)/.installed-dev
	$(BIN)/pytest -q -n 2 --dist worksteal -m "slow and not faults"

# PERDURE_FAULTS=0.1 runs a tenth.
faults: $(VENV)/.installed-dev
	$(BIN)/pytest -q tests/faults tests/data/test_fuzz.py -m "faults or not slow" --durations 20

mutants: $(VENV)/.installed-dev
	$(BIN)/python tests/mutation/mutants.py --workers 2

# The quick tests with the lowest version of every direct dependency that pyproject.toml allows.
# Warnings are not errors here: old versions use what newer ones have deprecated. The recorded bits
# in test_golden.py hold for the torch version in constraints.txt only.
test-lowest: $(VENV)/.installed-dev
	rm -rf $(LOWEST)
	$(BIN)/uv venv --seed --python $(BIN)/python $(LOWEST)
	$(BIN)/uv pip install --python $(LOWEST)/bin/python --resolution lowest-direct -e '.[dev]'
	$(LOWEST)/bin/pytest -q -n 2 --dist worksteal -W default --disable-warnings \
	  --ignore tests/experiment/test_golden.py

benchmark: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/cpu_step.py
	$(BIN)/python benchmarks/checkpoints.py
	$(BIN)/python benchmarks/grid.py

export NO_MKDOCS_2_WARNING := 1
docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --strict

docs-serve: $(VENV)/.installed-docs
	$(BIN)/mkdocs serve

clean:
	rm -rf $(VENV) $(LOWEST) build dist site .coverage .mypy_cache .ruff_cache .pytest_cache \
	  .hypothesis .import_linter_cache

# .installed: what perdure needs to run; .installed-EXTRA: the same with an extra.
$(VENV)/.installed: pyproject.toml constraints.txt
	@test -x $(BIN)/python || { echo "Creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "Installing perdure; the first time this downloads PyTorch and takes a few minutes"
	$(BIN)/pip install -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-%: $(VENV)/.installed
	@echo "Installing the $* extra"
	$(BIN)/pip install -c constraints.txt -e '.[$*]'
	@touch $@

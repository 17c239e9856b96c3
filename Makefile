# make demo | test | check | bench: each creates .venv and installs what it needs. bench takes hours; its parts take ARGS.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: demo test test-fast test-slow test-repeat test-gpu check size bench bench-training bench-datasets bench-split bench-sandbox bench-gate bench-evaluation bench-export bench-quality clean
.DELETE_ON_ERROR:

demo: $(VENV)/.train
	$(BIN)/thumbwheel demo $(ARGS)

test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not gpu" $(ARGS)

# without torch, the sandbox, whole programs and what goes over all stages: what to run while writing
test-fast: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -p tests.without_torch -n 2 --dist worksteal \
		-m "not slow and not gpu and not tools" \
		--ignore tests/architecture --ignore tests/contract --ignore tests/e2e \
		--ignore tests/unit/demo --ignore tests/unit/loop --ignore tests/unit/sandbox $(ARGS)

test-slow: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "slow and not gpu and not repeat" $(ARGS)

test-repeat: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "repeat and not gpu" $(ARGS)

test-gpu: $(VENV)/.dev
	$(BIN)/python -m pytest -m gpu tests/gpu $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=src:.:benchmarks $(BIN)/mypy --config-file= --cache-dir=.mypy_cache/benchmarks --ignore-missing-imports --follow-imports=silent benchmarks
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/architecture
	$(BIN)/python tests/architecture/size.py --against origin/main

# what each stage weighs; ARGS="--against REF" compares with another commit
size: $(VENV)/.dev
	$(BIN)/python tests/architecture/size.py $(ARGS)

bench: bench-training bench-datasets bench-split bench-sandbox bench-gate bench-evaluation bench-export

bench-training: $(VENV)/.dev
	$(BIN)/python benchmarks/training.py $(ARGS)

bench-datasets: $(VENV)/.dev
	$(BIN)/python benchmarks/dataset_scale.py $(ARGS)

bench-split: $(VENV)/.dev
	$(BIN)/python benchmarks/split.py $(ARGS)

bench-sandbox: $(VENV)/.dev
	$(BIN)/python benchmarks/sandbox.py $(ARGS)

bench-gate: $(VENV)/.dev
	$(BIN)/python benchmarks/gate.py $(ARGS)

bench-evaluation: $(VENV)/.dev
	$(BIN)/python benchmarks/evaluation.py --folder .bench/material $(ARGS)

bench-export: $(VENV)/.dev
	$(BIN)/python benchmarks/export.py $(ARGS)

bench-quality: $(VENV)/.dev
	$(BIN)/python benchmarks/quality.py $(ARGS)

$(VENV)/.train: pyproject.toml constraints.txt install.py
	$(PYTHON) install.py $(VENV) train gguf
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt install.py
	$(PYTHON) install.py $(VENV) train qlora gguf onnx syntax test check
	@touch $(VENV)/.train $@

clean:
	rm -rf $(VENV) thumbwheel-demo .bench

# make demo | test | check | bench: each creates .venv and installs what it needs. bench takes hours; its parts take ARGS.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: demo test test-fast test-slow test-repeat test-gpu test-ui test-peers test-openwebui check size bench bench-training bench-datasets bench-split bench-sandbox bench-gate bench-evaluation bench-export bench-quality bench-writer bench-kill bench-drain bench-ingest bench-idle bench-curves bench-lists bench-swap bench-aa bench-stoploss bench-bandit bench-year bench-yield bench-fifty bench-active bench-jobs bench-faults bench-queue fuzz clean
.DELETE_ON_ERROR:

demo: $(VENV)/.train
	$(BIN)/thumbwheel demo $(ARGS)

test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not repeat and not gpu and not ui" $(ARGS)

# without torch, the sandbox, whole programs and what goes over all stages: what to run while writing
test-fast: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -p tests.without_torch -n 2 --dist worksteal \
		-m "not slow and not repeat and not gpu and not tools" \
		--ignore tests/architecture --ignore tests/contract --ignore tests/e2e \
		--ignore tests/ui --ignore tests/unit/demo --ignore tests/unit/loop \
		--ignore tests/unit/sandbox $(ARGS)

test-slow: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "slow and not gpu and not repeat and not peers and not ui" $(ARGS)

test-repeat: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "repeat and not gpu" $(ARGS)

# twenty thousand broken requests to a running server
fuzz: $(VENV)/.dev
	THUMBWHEEL_FUZZ=20000 $(BIN)/python -m pytest --timeout 3600 tests/e2e/test_hostile_requests.py tests/unit/server/test_openapi.py tests/unit/server/test_whole_surface.py tests/unit/server/test_mcp.py $(ARGS)

test-gpu: $(VENV)/.dev
	$(BIN)/python -m pytest -m gpu tests/gpu $(ARGS)

# the pages in chromium; with THUMBWHEEL_UI_PICTURES=docs/ui their pictures are written, too
test-ui: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile tests/ui $(ARGS)

# a real MLflow and Phoenix, each in an environment of its own under ~/.cache/thumbwheel/peers
test-peers: $(VENV)/.dev
	THUMBWHEEL_REQUIRE_PEERS=1 $(BIN)/python -m pytest -m "peers and not openwebui" tests/others $(ARGS)

# a real Open WebUI: 7 GB and minutes to install, so it is not among the peers
test-openwebui: $(VENV)/.dev
	THUMBWHEEL_REQUIRE_PEERS=1 $(BIN)/python -m pytest -m openwebui tests/others $(ARGS)

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

bench-queue: $(VENV)/.dev
	$(BIN)/python benchmarks/rating_queue.py $(ARGS)

bench-sandbox: $(VENV)/.dev
	$(BIN)/python benchmarks/sandbox.py $(ARGS)

bench-gate: $(VENV)/.dev
	$(BIN)/python benchmarks/gate.py $(ARGS)

bench-evaluation: $(VENV)/.dev
	$(BIN)/python benchmarks/evaluation.py --folder .bench/material $(ARGS)

bench-export: $(VENV)/.dev
	$(BIN)/python benchmarks/export.py $(ARGS)

bench-writer: $(VENV)/.dev
	$(BIN)/python benchmarks/writer.py $(ARGS)

bench-drain: $(VENV)/.dev
	$(BIN)/python benchmarks/drain.py $(ARGS)

bench-kill: $(VENV)/.dev
	$(BIN)/python benchmarks/kill.py $(ARGS)

bench-gateway: $(VENV)/.dev
	$(BIN)/python benchmarks/gateway.py $(ARGS)

bench-jobs: $(VENV)/.dev
	$(BIN)/python benchmarks/jobs.py $(ARGS)

bench-faults: $(VENV)/.dev
	$(BIN)/python benchmarks/faults.py $(ARGS)

bench-quality: $(VENV)/.dev
	$(BIN)/python benchmarks/quality.py $(ARGS)

bench-ingest: $(VENV)/.dev
	$(BIN)/python benchmarks/ingest.py $(ARGS)

bench-idle: $(VENV)/.dev
	$(BIN)/python benchmarks/idle.py $(ARGS)

bench-curves: $(VENV)/.dev
	$(BIN)/python benchmarks/curves.py $(ARGS)

# makes a home of a million traces first, once: two minutes
bench-lists: $(VENV)/.dev
	$(BIN)/python benchmarks/lists.py $(ARGS)

bench-swap: $(VENV)/.dev
	$(BIN)/python benchmarks/swap.py $(ARGS)

# wrong promotions of 1,000 experiments without a difference, looked at after every event
bench-aa: $(VENV)/.dev
	$(BIN)/python benchmarks/experiments.py aa $(ARGS)
	$(BIN)/python benchmarks/experiments.py whole
	$(BIN)/python benchmarks/experiments.py served

bench-stoploss: $(VENV)/.dev
	$(BIN)/python benchmarks/experiments.py stoploss $(ARGS)

bench-bandit: $(VENV)/.dev
	$(BIN)/python benchmarks/experiments.py bandit $(ARGS)

# 52 weeks of the loop, 20 times, with drift, poison and crashes; then with three of ten raters poisoned
bench-year: $(VENV)/.dev
	$(BIN)/python benchmarks/year.py $(ARGS)

bench-yield: $(VENV)/.dev
	$(BIN)/python benchmarks/yielding.py $(ARGS)

# interactions of one person until the gate sees a gain, ten persons
bench-fifty: $(VENV)/.dev
	$(BIN)/python benchmarks/fifty.py $(ARGS)

# what rating in the order `active` is worth, ten persons
bench-active: $(VENV)/.dev
	$(BIN)/python benchmarks/active_order.py $(ARGS)

$(VENV)/.train: pyproject.toml constraints.txt install.py
	$(PYTHON) install.py $(VENV) train gguf
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt install.py
	$(PYTHON) install.py $(VENV) train qlora gguf onnx syntax test check
	@touch $(VENV)/.train $@

clean:
	rm -rf $(VENV) thumbwheel-demo .bench

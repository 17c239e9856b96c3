# make demo | test | check | bench: each creates .venv and installs what it needs. bench takes hours; its parts take ARGS.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# tests start thousands of processes, which would each compile our modules again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-fast test-touched test-all test-repeat test-postgresql attack test-gpu gpu-kit test-ui test-peers test-openwebui check check-lint check-types check-imports check-house site size bench bench-training bench-datasets bench-split bench-sandbox bench-gate bench-evaluation bench-export bench-quality bench-writer bench-kill bench-drain bench-ingest bench-scale bench-parts bench-ranks bench-startup bench-demo bench-idle bench-curves bench-lists bench-pages bench-swap bench-aa bench-stoploss bench-bandit bench-year bench-yield bench-fifty bench-active bench-jobs bench-faults bench-queue fuzz clean
.DELETE_ON_ERROR:

demo: $(VENV)/.train
	$(BIN)/thumbwheel demo $(ARGS)

# Which tests are in which set, and why: tests/sets.py
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
PARALLEL := -n 2 --dist worksteal

# what runs for every change, without the slow proofs
test: $(VENV)/.dev
	$(PYTEST) $(PARALLEL) --ignore tests/ui --tests fast $(ARGS)

# files of tests that take a moment: what to run while writing
test-fast: $(VENV)/.dev
	$(PYTEST) $(PARALLEL) --tests quick $(ARGS)

# the slow proofs of every change, and all slow tests that the change reaches since the last full run
test-touched: $(VENV)/.dev
	$(PYTEST) $(PARALLEL) --ignore tests/ui --tests touched $(ARGS)
	$(PYTEST) -n 2 --dist loadfile tests/ui --tests touched $(ARGS)

# everything, with fresh seeds of hypothesis; writes tests/last_full_run.json where all pass
test-all: $(VENV)/.dev
	THUMBWHEEL_FRESH_SEEDS=1 $(PYTEST) $(PARALLEL) --ignore tests/ui --tests everything --record build/tests.json $(ARGS)
	THUMBWHEEL_FRESH_SEEDS=1 $(PYTEST) -n 2 --dist loadfile tests/ui --tests everything --record build/tests-ui.json $(ARGS)
	$(BIN)/python -m tests.full_run build/tests.json build/tests-ui.json

test-repeat: $(VENV)/.dev
	$(PYTEST) $(PARALLEL) -m "repeat and not gpu" $(ARGS)

# stages whose rows differ most between databases, on PostgreSQL
test-postgresql: $(VENV)/.dev
	THUMBWHEEL_TEST_DATABASE=postgresql $(PYTEST) $(PARALLEL) --tests fast -m "not sqlite" tests/unit/models tests/unit/loop tests/unit/erasure tests/unit/homes tests/unit/report $(ARGS)

# the attacks in their long form, also those marked `repeat`: poisoned trainings, models of
# strangers, a live provider, clocks that jump, bounded memory; every run of the tests has the rest
attack: $(VENV)/.dev
	$(PYTEST) tests/attacks -m "not gpu" $(ARGS)

# twenty thousand broken requests to a running server
fuzz: $(VENV)/.dev
	THUMBWHEEL_FUZZ=20000 $(BIN)/python -m pytest --timeout 3600 tests/e2e/test_hostile_requests.py tests/unit/server/test_openapi.py tests/unit/server/test_whole_surface.py tests/unit/server/test_mcp.py $(ARGS)

test-gpu: $(VENV)/.dev
	$(BIN)/python -m pytest -m gpu tests/gpu $(ARGS)

# wheels for a GPU server without a network, on which gpu/run then checks and measures; ARGS=--nf4
# makes the second kit, for bases in four bits
gpu-kit: $(VENV)/.dev
	$(BIN)/python -m gpu.kit $(ARGS)

# the pages in chromium; with THUMBWHEEL_UI_PICTURES=docs/ui their pictures are written, too
test-ui: $(VENV)/.dev
	$(PYTEST) -n 2 --dist loadfile tests/ui $(ARGS)

# a real MLflow and Phoenix, each in an environment of its own under ~/.cache/thumbwheel/peers
test-peers: $(VENV)/.dev
	THUMBWHEEL_REQUIRE_PEERS=1 $(BIN)/python -m pytest -m "peers and not openwebui" tests/others $(ARGS)

# a real Open WebUI: 7 GB and minutes to install, so it is not among the peers
test-openwebui: $(VENV)/.dev
	THUMBWHEEL_REQUIRE_PEERS=1 $(BIN)/python -m pytest -m openwebui tests/others $(ARGS)

# the documentation as a site, in build/site; `.venv/bin/zensical serve` shows it while you write
site: $(VENV)/.dev
	$(BIN)/zensical build --clean --strict

check: check-lint check-types check-imports check-house

check-lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

check-types: $(VENV)/.dev
	$(BIN)/mypy

check-imports: $(VENV)/.dev
	$(BIN)/python -m tests.import_contracts

check-house: $(VENV)/.dev
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

bench-scale: $(VENV)/.dev
	$(BIN)/python benchmarks/scale.py $(ARGS)

bench-parts: $(VENV)/.dev
	$(BIN)/python benchmarks/parts.py $(ARGS)

bench-ranks: $(VENV)/.dev
	$(BIN)/python benchmarks/ranks.py $(ARGS)

bench-demo: $(VENV)/.dev
	$(BIN)/python benchmarks/demo_range.py $(ARGS)

bench-startup: $(VENV)/.dev
	$(BIN)/python benchmarks/startup.py $(ARGS)

bench-idle: $(VENV)/.dev
	$(BIN)/python benchmarks/idle.py $(ARGS)

bench-curves: $(VENV)/.dev
	$(BIN)/python benchmarks/curves.py $(ARGS)

# makes a home of a million traces first, once: two minutes
bench-lists: $(VENV)/.dev
	$(BIN)/python benchmarks/lists.py $(ARGS)

bench-pages: $(VENV)/.dev
	$(BIN)/python benchmarks/pages.py $(ARGS)

bench-swap: $(VENV)/.dev
	$(BIN)/python benchmarks/swap.py $(ARGS)

# wrong verdicts of sixty kinds of experiments without a difference, and the power beside them; of
# the whole controller, looked at after every event
bench-aa: $(VENV)/.dev
	$(BIN)/python benchmarks/experiments.py grid $(ARGS)
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

INSTALLED := pyproject.toml constraints.txt install.py packages/thumbwheel-compat/pyproject.toml

$(VENV)/.train: $(INSTALLED)
	$(PYTHON) install.py $(VENV) train gguf compat
	@touch $@

$(VENV)/.dev: $(INSTALLED)
	$(PYTHON) install.py $(VENV) train qlora gguf onnx syntax compat test check docs
	@touch $(VENV)/.train $@

clean:
	rm -rf $(VENV) thumbwheel-demo .bench

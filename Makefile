# Every target makes its own virtual environment first; .venv/.installed marks a complete one.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The CPU build of this release is what `torch==2.13.0` resolves to where only that is offered.
TORCH ?= torch==2.13.0

.PHONY: demo test test-all conformance coverage fuzz mutation architectures docs lint clean

demo: $(VENV)/.installed
	$(BIN)/tkc demo

# Of the longest tests each day has a part of the cases; test-all runs every case.
test: export TKC_TEST_DAY = $(shell date +%F)
test test-all: $(VENV)/.installed
	$(BIN)/python -m pytest -q -n auto --dist loadfile --durations 20 -m "not speed"
	$(BIN)/python -m pytest -q -m speed

# Hours on two cores, in parts that resume: an interrupted run goes on where it was.
conformance: $(VENV)/.installed
	$(BIN)/python -m tests.conformance --most 12 --resume --jobs 2 --record
	$(BIN)/python -m tests.conformance --fallback --most 12 --resume --jobs 2 --record
	$(BIN)/python -m tests.conformance.onnx_nodes --all

# Hours, too: every model type of transformers and PyTorch's own layers, in parts that resume.
coverage: $(VENV)/.installed
	$(BIN)/python -m tests.coverage --resume --record

MINUTES ?= 10
SEED ?= 0
FORM ?= graphs
fuzz: $(VENV)/.installed
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) --seed $(SEED) --form $(FORM)

# Minutes for each model and architecture; no GPU needed.
architectures: $(VENV)/.installed
	TKC_ALL_ARCHITECTURES=1 $(BIN)/python -m pytest -q tests/runtime/test_models_for_devices.py

mutation: $(VENV)/.installed
	$(BIN)/python -m tests.mutation

# The documentation site in build/site, with the tables that are generated from the code.
docs: $(VENV)/.installed
	$(BIN)/python -m pip install -q -e '.[docs]'
	$(BIN)/python -m mkdocs build --strict

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q $(TORCH)
	$(BIN)/python -m pip install -q -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .mypy_cache

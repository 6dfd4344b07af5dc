# Everything a newcomer needs: `make demo` and `make test`. Nothing needs docker.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
ARGS ?=
NAME ?= capture
SEEDS ?= 2000
HEADWATER_FAULTS ?= 500
START ?= 0
WORKERS ?= 4
PROMTOOL ?= v0.307.3

# Where the caller's environment forbids it, thousands of short processes would compile the same modules again, each for itself.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: fetched kernels-capture kernels-stores kernels-audit reliability docs roles promtool demo test ready lint fmt bench faults sim clean distclean lock setup

setup: $(STAMP)

$(STAMP): requirements/dev.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Headwater needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	@echo "installing what requirements/dev.lock pins into $(VENV): once, a minute or two" >&2
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python -m cdc.demo $(ARGS)

test: $(STAMP)
	$(MAKE) -j2 lint ready
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(ARGS)

# What the tests' processes would otherwise make at the same time, each for itself: in a fresh clone the kernels take two minutes of a core.
ready: kernels-capture kernels-stores kernels-audit

fetched: $(STAMP)
	$(BIN)/python -m cdc.embedded fetch
	$(BIN)/python -m compileall -q bench cdc sinks snapshots tests

kernels-capture kernels-stores: kernels-%: fetched
	$(BIN)/python -m cdc.demo.kernels $*

kernels-audit: fetched
	$(BIN)/python -m tests.kernels

faults: $(STAMP) ready
	HEADWATER_FAULTS=$(HEADWATER_FAULTS) $(BIN)/python -m pytest -m faults -n $(WORKERS) --dist loadgroup $(ARGS)

sim: $(STAMP)
	$(BIN)/python -m tests.sim --seeds $(SEEDS) --start $(START) $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

reliability: $(STAMP)
	$(BIN)/python -m tests.cases.table

roles: $(STAMP)
	$(BIN)/python -m tests.roles

docs: $(STAMP)
	$(BIN)/python -m cdc.embedded fetch
	$(BIN)/python -m tests.documents

promtool: $(STAMP)
	mkdir -p build/promtool
	cd build/promtool && { test -f go.mod || go mod init promtool; } && go get github.com/prometheus/prometheus/cmd/promtool@$(PROMTOOL)
	cd build/promtool && go build -o $(abspath $(BIN))/promtool github.com/prometheus/prometheus/cmd/promtool

bench: $(STAMP)
	$(BIN)/python -m bench $(NAME) $(ARGS)

lock: $(STAMP)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --extra dev pyproject.toml -o requirements/dev.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --extra kafka --constraint requirements/dev.lock pyproject.toml -o requirements/run.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --extra bench --constraint requirements/dev.lock pyproject.toml -o requirements/bench.lock

clean:
	rm -rf var build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean
	test ! -x $(BIN)/python || $(BIN)/python -m cdc.embedded forget
	rm -rf $(VENV)

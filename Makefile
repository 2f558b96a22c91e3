# `make up` serves, `make test` proves. Both set up everything they need.
PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3; do \
	"$$p" -c 'import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
LOCKS := requirements.lock requirements-binary.lock
STAMP := $(VENV)/.installed

.PHONY: up test bench lint format lock env clean

up: env
	@$(BIN)/brim up $(ARGS)

test: env lint
	@$(BIN)/python -m pytest $(ARGS)

bench: env
	@$(BIN)/brim bench $(ARGS)

lint: env
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: env
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

env: $(STAMP)

# The stamp carries the hash of what was installed, so a second run needs no network and a changed lock installs again.
$(STAMP): $(LOCKS) pyproject.toml
	@test -n "$(PYTHON)" || { echo "error: no python3 from 3.11 to 3.13 with ensurepip was found"; \
	  echo "hint: the embedded server has python stubs up to 3.13; install python3.12 with its venv module, or name one: make PYTHON=/path/to/python3.12 up"; exit 2; }
	@echo "[1/3] environment in $(VENV) with $(PYTHON)" >&2
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@echo "[2/3] pinned packages (the first time: some minutes)" >&2
	@$(BIN)/python -m pip install --quiet --progress-bar off -r requirements.lock
	@$(BIN)/python -m pip install --quiet --no-deps -r requirements-binary.lock
	@echo "[3/3] brim itself" >&2
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

lock:
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-annotate --no-header requirements.in -o requirements.lock.all
	@grep -vE '^(nvidia-|cuda-|triton==)' requirements.lock.all > requirements.lock; rm requirements.lock.all

clean:
	rm -rf $(VENV) .cache runs .mypy_cache .ruff_cache .pytest_cache

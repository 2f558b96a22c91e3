# `make up` serves, `make test` proves. Both set up everything they need.
PYTHON ?= $(shell for p in python3.12 python3.11 python3; do \
	"$$p" -c 'import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
LOCKS := requirements.lock requirements-binary.lock
STAMP := $(VENV)/.installed
SHIPPED := text_embedding image_classifier
# Test files side by side. Most of the suite waits for servers to start and stop, so two take half the time on two cores.
WORKERS ?= 2
SOAK_S ?= 600

.PHONY: up test bench bench-sim bench-tune bench-overload bench-text demo-overload lint format lock env clean

up: env
	@$(BIN)/brim up $(ARGS)

test: env lint
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

# Each point ends after 5 windows at most (3 more when they do not agree), so that all of it stays below 5 minutes on two cores.
# The benchmarks after it take 9 more. A missed target fails make once all have been shown; noise (3) is no answer, and fails nothing.
bench: env
	@for service in $(SHIPPED); do $(BIN)/brim export $$service >&2 || exit; done
	@for service in $(SHIPPED); do \
	  echo "$$service"; $(BIN)/brim measure $$service --max-trials 5 $(ARGS) || exit; done
	@status=0; for benchmark in runtime-cost padding saturation; do \
	  $(BIN)/brim bench $$benchmark || { code=$$?; test $$code -eq 3 || status=$$code; }; done; exit $$status

# The simulator against the real server: 36 points, 10 minutes at most.
bench-sim: env
	@$(BIN)/brim bench simulation $(ARGS)

# What `brim tune` chooses against an exhaustive sweep of 60 settings: half an hour.
bench-tune: env
	@$(BIN)/brim bench tuning $(ARGS)

# The gateway at up to ten times what the model can answer, then ten minutes at 0.9 of it, and a page of both: 15 minutes.
bench-overload: env
	@out="$(OUT)"; out="$${out:-runs/$$(date -u +%Y%m%dT%H%M%S)-overload}"; status=0; \
	$(BIN)/brim bench overload --out "$$out" $(ARGS) || status=$$?; \
	$(BIN)/brim soak --known-time 100000,4000 --duration $(SOAK_S) --out "$$out" || { code=$$?; test $$status -ne 0 || status=$$code; }; \
	$(BIN)/brim report "$$out" || exit; exit $$status

# Text generation: through the server against the engine alone, short prompts behind long ones, overload, and the simulator
# against the engine: 25 minutes at most.
bench-text: env
	@$(BIN)/brim export text_generation >&2
	@status=0; for benchmark in generation generation-simulation; do \
	  $(BIN)/brim bench $$benchmark $(ARGS) || { code=$$?; test $$code -eq 3 || status=$$code; }; done; exit $$status

# An alert fires on a real Prometheus at three times what a model can answer, and ends after it: two minutes.
demo-overload: env
	@$(BIN)/brim demo overload $(ARGS)

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
	@echo "[1/3] environment in $(VENV)" >&2
	@if test -x $(BIN)/python; then :; elif test -n "$(PYTHON)"; then "$(PYTHON)" -m venv $(VENV); else \
	  echo "no python3.11 or 3.12 with the venv module here (the server's python stub needs numpy 1): fetching 3.12 with uv" >&2; \
	  { python3 -m venv .cache/uv && .cache/uv/bin/python -m pip install --quiet uv && \
	    .cache/uv/bin/uv venv --quiet --seed --python 3.12 $(VENV); } || { \
	  echo "error: no Python 3.11 or 3.12 with the venv module was found or could be fetched" >&2; \
	  echo "hint: install one (Debian and Ubuntu: apt-get install python3.12-venv) or name it: make PYTHON=/path/to/python3.12 up" >&2; \
	  exit 2; }; fi
	@echo "[2/3] pinned packages (the first time: some minutes)" >&2
	@$(BIN)/python -m pip install --quiet --progress-bar off -r requirements.lock
	@$(BIN)/python -m pip install --quiet --no-deps -r requirements-binary.lock
	@echo "[3/3] brim itself" >&2
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# CUDA libraries are torch's own business: on a machine without the CPU build of torch, pip takes them as torch pins them.
lock: env
	@mkdir -p .cache && $(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv pip compile --quiet --python-platform linux --python-version 3.11 --no-annotate --no-header requirements.in -o .cache/lock
	@grep -vE '^(nvidia-|cuda-|triton==)' .cache/lock > requirements.lock

clean:
	rm -rf $(VENV) .cache runs .mypy_cache .ruff_cache .pytest_cache

# Two targets to know: `make demo` and `make test`. Both make and reuse .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
EXTRAS := atari,mujoco,envpool,minatar,video,onnx,dev

.DEFAULT_GOAL := help
.PHONY: help demo test lint clean

help:  ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

# torch comes first and pinned: anything that depends on it would otherwise pull
# the newest build, with gigabytes of CUDA packages.
$(VENV)/.core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else f"Redline needs Python 3.11 or later, this is {sys.version.split()[0]}. Call: make PYTHON=python3.12 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing torch and Redline into $(VENV) (once, a minute or two) ..."
	@$(PIP) torch
	@$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	@echo "Installing the extras and the checkers ..."
	@$(PIP) --editable '.[$(EXTRAS)]'
	@touch $@

demo: $(VENV)/.core  ## train PPO on CartPole-v1, evaluate it, draw its learning curve
	@$(BIN)/python examples/demo.py

test: $(VENV)/.dev lint  ## every check and test
	@$(BIN)/python -m pytest

lint: $(VENV)/.dev  ## ruff, import-linter, pyright
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/basedpyright --level error

clean:  ## remove the environment and everything generated
	rm -rf $(VENV) build dist demo-run .pytest_cache .ruff_cache .hypothesis src/*.egg-info

# Two targets to know: `make demo` and `make test`. Both make and reuse .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# What is installed is compiled when it is first imported: of most of it nothing ever is. It is kept,
# or every process of the tests would compile torch anew.
unexport PYTHONDONTWRITEBYTECODE
PIP_OPTIONS := --no-compile --quiet --disable-pip-version-check
PIP    := $(BIN)/python -m pip install $(PIP_OPTIONS) --constraint constraints.txt
EXTRAS := atari mujoco minatar box2d video onnx wandb minari ray tune watch docs dev
ifeq ($(shell uname),Linux)
EXTRAS += envpool
endif

.DEFAULT_GOAL := help
# Only what is told to goes side by side.
ifeq ($(MAKELEVEL),0)
.NOTPARALLEL:
endif
.PHONY: help install demo installed-core installed-dev test test-all test-native test-profile-312 lint docs dist clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 13

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else f"Redline needs Python 3.11 or later, this is {sys.version.split()[0]}. Call: make PYTHON=python3.12 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@touch $@

# torch comes first and pinned: anything that depends on it would otherwise pull
# the newest build, with gigabytes of CUDA packages.
$(VENV)/.torch: constraints.txt $(VENV)/.made
	@echo "Installing torch into $(VENV) (once, a minute or less) ..."
	@$(PIP) --no-deps torch
	@touch $@

# Redline without what it needs: its C code is compiled while torch is installed, and again once
# it has changed: an editable installation would go on with what it has.
CSRC := $(wildcard src/redline/*/csrc/* src/redline/*/*/csrc/*)
$(VENV)/.package: pyproject.toml setup.py $(CSRC) $(VENV)/.made
	@echo "Compiling Redline ..."
	@$(PIP) --no-deps --editable .
	@touch $@

# What is needed, of pyproject.toml; `pip install .[extras]` would compile once more.
REQUIRED := $(BIN)/python -c 'import sys, tomllib; \
  p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
  lists = [p["dependencies"]] + [p["optional-dependencies"][extra] for extra in sys.argv[1:]]; \
  print(*sum(lists, []), sep="\n")'

# What does not depend on torch, and so need not wait for it.
$(VENV)/.light: pyproject.toml $(VENV)/.made
	@echo "Installing what Redline needs ..."
	@$(REQUIRED) | grep -v -e '^torch' -e '^tensordict' > $@.txt
	@$(PIP) --no-warn-conflicts --requirement $@.txt
	@touch $@

$(VENV)/.core: $(VENV)/.package $(VENV)/.torch $(VENV)/.light
	@echo "Installing what needs torch, and looking that nothing is missing ..."
	@$(REQUIRED) > $@.txt
	@$(PIP) --requirement $@.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	@echo "Installing what its extras and its checks need ..."
	@$(REQUIRED) $(EXTRAS) > $@.txt
	@$(PIP) --requirement $@.txt
	@touch $@

installed-core: $(VENV)/.core
	@:

installed-dev: $(VENV)/.dev
	@:

# What mostly runs on one core, or waits for the network, goes side by side. The environment first:
# a Python that is too old is said before anything else begins.
SIDE_BY_SIDE = @$(MAKE) --no-print-directory $(VENV)/.made && $(MAKE) --no-print-directory --jobs=3
# Older makes, macOS's among them, mix the lines of what runs side by side.
IN_ORDER    := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

install:  ## Redline and what it needs, into .venv
	$(SIDE_BY_SIDE) installed-core

demo: install  ## train PPO on CartPole-v1, evaluate it, draw its learning curve
	@$(BIN)/python examples/demo.py

# The profiler's tests on 3.12 need nothing of what is installed meanwhile.
test:  ## every check, and the tests but those of tests/long.txt
	$(SIDE_BY_SIDE) WITH_READERS=$(WITH_READERS) installed-dev test-profile-312
	$(SIDE_BY_SIDE) $(IN_ORDER) lint docs
	@$(BIN)/python -m pytest --numprocesses auto --dist worksteal $(PYTEST_OPTIONS)

test-all: PYTEST_OPTIONS := --all
test-all: WITH_READERS := yes
test-all: test  ## every check and every test

# Those that reach the C code by its own doors; what trains with it is among the others.
NATIVE := $(addprefix tests/profile/,test_marks.py test_oracle.py record/test_releases.py \
            record/test_sampling.py record/test_tasks.py record/test_unobserved_ends.py \
            analyse/test_overlap.py analyse/test_stacks.py analyse/test_timeline.py) \
          $(addprefix tests/engines/cpu/,test_convolution.py test_dense_kernel.py) \
          tests/replay/test_prioritized.py

test-native: $(VENV)/.dev  ## compile the C code, and run only its tests
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@$(BIN)/python -m pytest --numprocesses auto --dist worksteal $(NATIVE)

# The profiler stands alone and observes Python 3.12 by other means than 3.11: its tests that need
# no torch run there in a light environment of their own, where a Python 3.12 is found. What only
# reads what was recorded is left to `make test-all`.
VENV312 := .venv-312
READERS := $(patsubst %,--ignore=tests/profile/%,advise analyse report)
LIGHT   := numpy pyarrow pytest hypothesis
PY312   := $(firstword $(foreach p,python3.12 $(wildcard $(HOME)/.pyenv/versions/3.12*/bin/python3.12),\
             $(shell $(p) -c 'import sys; print(sys.executable) if sys.version_info[:2] == (3, 12) else 0' 2>/dev/null)))

# Both compile into this folder, so not at once.
$(VENV312)/.light: pyproject.toml setup.py $(wildcard src/redline/profile/csrc/*) | $(VENV)/.package
	@test -x $(VENV312)/bin/python || $(PY312) -m venv $(VENV312)
	@echo "Installing the profiler alone into $(VENV312) ..."
	@$(VENV312)/bin/python -m pip install $(PIP_OPTIONS) $(LIGHT)
	@$(VENV312)/bin/python -m pip install --no-compile --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

ifeq ($(PY312),)
test-profile-312:
	@echo "The profiler's tests on Python 3.12 are left out: no python3.12 on PATH or under ~/.pyenv."
else
test-profile-312: $(VENV312)/.light
	@$(VENV312)/bin/python -m pytest -p no:cacheprovider tests/profile $(if $(WITH_READERS),,$(READERS)) \
	  --ignore=tests/profile/report/test_figures.py --ignore=tests/profile/report/test_page.py
endif

lint: $(VENV)/.dev  ## ruff, import-linter, pyright
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/basedpyright --level error --threads 2

# Warnings are errors: a dead link, anchor or image, or a name that the reference cannot find.
docs: $(VENV)/.dev  ## the documentation as a site in site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# An extension that does not compile fails the build here; on a user's machine it is left out.
dist: $(VENV)/.core  ## a wheel and a source archive in dist/
	@$(PIP) 'build>=1.2'
	@rm -rf build
	@REDLINE_REQUIRE_EXTENSIONS=1 $(BIN)/python -m build --outdir dist .

clean:  ## remove the environment and everything generated
	rm -rf $(VENV) $(VENV312) build dist site demo-run .pytest_cache .ruff_cache .hypothesis src/*.egg-info

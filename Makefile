# make demo and make test do all the set-up on a fresh machine with Python 3.11 or later, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

DEMO := average gem isqrt-cov fewer-channels monet-2-ts ipccp-ts ipccp-rm ipccp-cs ipccp-fit mean-cov auto-fit

.DEFAULT_GOAL := help
.PHONY: help demo tour test test-fast test-oldest test-package docs build fuzz kills bench lint format install clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

demo: $(VENV)/.train  ## compare methods on the built-in typefaces, with a page (about three minutes)
	@$(BIN)/polycov compare --methods $(DEMO) --dims 512 2048 4096 --seeds 4 --jobs 2 --out runs/demo

tour: $(VENV)/.package  ## every method on one screen: size, kernel error and time
	@$(BIN)/python -W "ignore:Failed to initialize NumPy" -m polycov.commands.tour

test: $(VENV)/.developer lint  ## lint, types, imports, doctests and tests
	$(BIN)/python -m pytest -n auto

test-fast: $(VENV)/.developer  ## the tests that take less than a second or two each
	$(BIN)/python -m pytest -n auto -m "not slow"

test-oldest: ## the tests with the oldest versions that pyproject.toml promises (its torch is large)
	@test -x .venv-oldest/bin/python || $(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --upgrade pip
	.venv-oldest/bin/python -m pip install --quiet -c constraints-oldest.txt -e '.[train,export,search,sklearn,data]' --group test
	.venv-oldest/bin/python -m pytest -n auto -o filterwarnings=default

test-package: build  ## install the wheel with each extra into clean environments and use it (ten minutes; EXTRAS="train export" for fewer)
	$(BIN)/python tests/clean_installs.py $(EXTRAS)

docs: $(VENV)/.developer  ## build the documentation site in docs/_build; warnings are errors
	$(BIN)/python -m sphinx -W --keep-going -n -q -b html docs docs/_build

build: $(VENV)/.developer  ## build the sdist and the wheel in dist
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist

fuzz: $(VENV)/.train  ## 100,000 random cases of every method against a reference in float64 (ten minutes; FUZZ="--cases 5000" for less)
	$(BIN)/polycov bench --what fuzz --threads 1 --out runs/fuzz $(FUZZ)

kills: $(VENV)/.developer  ## kill every command at many moments, and compare what it resumes to (an hour; KILLS="--moments 5" for less)
	cd tests && PYTHONPATH=. OMP_NUM_THREADS=1 ../$(BIN)/python -m kills.campaign $(KILLS)

bench: $(VENV)/.train  ## measure time and memory against a plain iSQRT-COV (half an hour; BENCH="--what methods" for less)
	$(BIN)/polycov bench $(or $(BENCH),--what methods dims growth routes step ideas)

lint: $(VENV)/.developer
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.developer  ## format and fix what can be fixed
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

install: $(VENV)/.developer  ## set up the environment of a developer

clean:  ## remove the environment and caches
	rm -rf $(VENV) .venv-oldest docs/_build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/.pip: constraints.txt
	@echo "Setting up $(VENV) (torch is large; the first time takes a minute or more) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) pip
	@touch $@

$(VENV)/.package: $(VENV)/.pip pyproject.toml
	@$(PIP) -e .
	@touch $@

$(VENV)/.train: $(VENV)/.package
	@$(PIP) -e '.[train,fast]'
	@touch $@

$(VENV)/.developer: $(VENV)/.train
	@$(PIP) -e '.[app]' --group test --group lint --group docs --group build
	-@$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps -c constraints.txt -d $(VENV)/wheels rxnmapper chemicals
	@touch $@

# Everything a person or a CI job starts here. `make help` lists it.
#
# PYTHON  the interpreter that makes the virtual environment (3.11 or newer).
# VENV    where the virtual environment goes.
# WHEELS  a llama-cpp-python wheel, a folder or a page with one: installed instead of compiling, for example
#         make serve WHEELS=/srv/wheels
# ARGS    options handed on: make serve ARGS="--port 9000"

SHELL  := bash
PYTHON ?= python3
VENV   ?= .venv
WHEELS ?=
ARGS   ?=

BIN := $(VENV)/bin
PY  := $(BIN)/python
# How llama.cpp is compiled. What was compiled otherwise is compiled again after a change here.
RECIPE := $(wildcard tasks/engine/build/*.py)

export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := help
.PHONY: help setup model serve test chaos check audit deploy-check bench lock vendor screenshots clean distclean
.DELETE_ON_ERROR:

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

setup: $(VENV)/.installed  ## make the virtual environment from the lock file, with what tests and checks need

# What serving needs, without the tools of developers: a minute less before the first token.
model: $(VENV)/.runtime  ## fetch the default model, unless it is there
	@$(BIN)/inference-server model fetch

serve: model  ## serve the default model on this machine
	@exec $(BIN)/inference-server serve $(ARGS)

# Those that run the model want both cores; the others don't. ARGS may leave one of the two without a test.
test: setup model  ## run every test but chaos
	$(PY) -m pytest -m "(unit or integration) and not chaos" -n 2 $(ARGS) || [ $$? = 5 ]
	$(PY) -m pytest -m "e2e and not chaos" $(ARGS) || [ $$? = 5 ]

chaos: setup model  ## run the tests that inject faults
	$(PY) -m pytest -m chaos $(ARGS)

check: setup audit deploy-check  ## lint, type-check, check layers and structure, audit dependencies
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PY) .ci/structure.py

audit: setup  ## look the locked dependencies up in the vulnerability database
	@$(PY) .ci/audit.py requirements.lock

deploy-check: setup  ## check deploy/ with the tools that are here
	@.ci/deploy-check

bench: model  ## measure throughput and latency on this machine
	@exec $(BIN)/inference-server bench $(ARGS)

lock: setup  ## resolve the dependencies again
	$(PY) -m uv pip compile --universal --generate-hashes --extra dev -p 3.11 pyproject.toml -o requirements.lock
	$(PY) -m uv pip compile --universal --generate-hashes -c requirements.lock -p 3.11 pyproject.toml \
	    -o deploy/requirements.lock

screenshots: setup model  ## take the README's pictures of the page
	$(PY) -m loadtest.screenshots $(ARGS)

vendor: setup  ## bring the page's libraries from npm again
	$(PY) .ci/vendor.py

clean:  ## remove caches and build output
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean  ## remove the virtual environment and the models too
	rm -rf $(VENV) models/*.gguf models/*.sha256 models/.fetch models/.fetch.lock

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed; name one: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.llama: $(VENV)/.made requirements.lock $(RECIPE)
	@$(PY) tasks/engine/build/compile.py $(if $(WHEELS),--wheels "$(WHEELS)")
	@touch $@

# All that serving needs but llama-cpp-python, which only the recipe may compile.
$(VENV)/.packages: $(VENV)/.made deploy/requirements.lock
	@sed '/^llama-cpp-python==/,/[^\\]$$/d' deploy/requirements.lock > $@.lock
	@$(PY) -m pip install --quiet --require-hashes -r $@.lock
	@touch $@

# Compiling takes minutes, in which the packages are installed.
$(VENV)/.runtime: $(VENV)/.made deploy/requirements.lock requirements.lock pyproject.toml $(RECIPE)
	@$(MAKE) --no-print-directory -j2 $(VENV)/.llama $(VENV)/.packages
	$(PY) -m pip install --quiet --no-deps -e .
	@touch $@

$(VENV)/.installed: requirements.lock $(VENV)/.runtime
	$(PY) -m pip install --quiet --require-hashes -r requirements.lock
	@touch $@

# Set-up, demo and tests. Everything lives in .venv; every target can be run again at any time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all docs bench lint types browser licences lock fix clean

demo: $(VENV)/.run
	$(BIN)/fedstrata compare examples/one_label.toml --out runs/one-label
	$(BIN)/fedstrata report runs/one-label -o runs/one-label/report.html

test: lint types browser
	$(BIN)/python -m pytest -n 2 --durations=10

test-all: test
	$(BIN)/python -m pytest -n 2 --dist loadgroup --durations=10 -m extended # one cluster and one build, for all who use it
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=10 -m sites # in order: the last kill

docs: $(VENV)/.dev # the pages as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks partitions
	$(BIN)/python -m benchmarks stratify
	$(BIN)/python -m benchmarks selection
	$(BIN)/python -m benchmarks local
	$(BIN)/python -m benchmarks engine
	$(BIN)/python -m benchmarks scaling
	$(BIN)/python -m benchmarks ray
	$(BIN)/python -m benchmarks profile
	$(BIN)/python -m benchmarks work
	$(BIN)/python -m benchmarks privacy
	$(BIN)/python -m benchmarks sites
	$(BIN)/python -m benchmarks report

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo

types: $(VENV)/.dev
	$(BIN)/mypy

# What draws the pages in tests: Chromium if it is there, Debian's where we may install it, or Playwright's own.
browser: $(VENV)/.dev
	@command -v chromium > /dev/null || command -v google-chrome > /dev/null \
	  || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null && apt-get -qq update && apt-get -qq -y install chromium; } \
	  || $(BIN)/python -m playwright install chromium \
	  || echo "WARNING: NO CHROMIUM, and none could be installed: the browser tests will be skipped" >&2

licences: $(VENV)/.dev # of everything that is installed with all extras
	$(BIN)/python -m pytest tests/test_dependencies.py

# Write down what is installed here; without +cpu, so that every build of that version will do, and without CUDA's own.
lock: $(VENV)/bin/python
	{ echo "# Versions that CI installs; written by make lock."; $(BIN)/python -m pip freeze --all --exclude-editable \
	  | grep == | grep -iv '^\(nvidia\|triton\|cuda\|pip==\)' | sed 's/+[a-z0-9.]*$$//'; } > requirements/ci.txt

fix: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("fedstrata needs Python 3.11 to 3.13; say which with: make PYTHON=python3.12") \
	  if not (3, 11) <= sys.version_info[:2] <= (3, 13) else 0'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[board]' # what the README types next
	@touch $@

# In the versions that are known to work; where an index does not have one of them any more, in those that it has.
$(VENV)/.dev: pyproject.toml requirements/ci.txt $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint requirements/ci.txt --editable '.[dev]' \
	  || { echo "WARNING: NOT IN THE VERSIONS OF requirements/ci.txt" >&2; \
	       $(BIN)/python -m pip install --quiet --editable '.[dev]'; }
	@touch $@ $(VENV)/.run

clean:
	rm -rf $(VENV) runs .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .grimp_cache .hypothesis

# Set-up, demo and tests. Everything lives in .venv; every target can be run again at any time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all docs bench lint types browser fix clean

demo: $(VENV)/.run
	$(BIN)/fedstrata compare examples/one_label.toml --out runs/one-label
	$(BIN)/fedstrata report runs/one-label -o runs/one-label/report.html

test: lint types browser
	$(BIN)/python -m pytest -n 2 --durations=10

test-all: test
	$(BIN)/python -m pytest -n 2 --durations=10 -m extended
	$(BIN)/python -m pytest --durations=10 -m sites # one after another: real processes have deadlines

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

fix: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("fedstrata needs Python 3.11 to 3.13; say which with: make PYTHON=python3.12") \
	  if not (3, 11) <= sys.version_info[:2] <= (3, 13) else 0'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.run

clean:
	rm -rf $(VENV) runs .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .grimp_cache .hypothesis

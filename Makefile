# Every target works on a fresh machine: it builds the virtual environment it needs from pyproject.toml first.
#
#   make demo  [DB=postgres] [DAY=path/to/basket_lines.csv] [ARGS="--chaos 2"]    play a real day; DATABASE_URL is honoured
#   make demo-check ...        the same without staying up; exit status 0 only when the report reconciles
#   make test [ARGS=...]       all lanes: {Python 3.11 + Django 5.2, Python 3.13 + Django 6.1} x {SQLite, PostgreSQL}
#   make test-fast [ARGS=...]  this Python, SQLite, without the slow tests
#   make faults [SCALE=10]     the long form of tests/faults on both databases: kills, freezes, clocks, lost connections; `make test` has the short one
#   make properties [SCALE=10] the long form of tests/property, with other examples each time; `make test` has the short one
#                              tests run in TEST_PROCESSES=3 processes side by side
#   make conformance [ROWS=TX,ST]   behaviours without a test, and docs/reference/conformance.md anew; exit status 1 when there are any
#   make docs                  the documentation with the reference of the public names, into var/site; make lint does it, too
#   make lint · make format · make bench [ARGS=...] · make venv · make coverage · make clean

PYTHON = .venv/bin/python
# First choice first. Everything newer than 3.11 runs with Django 6.1, 3.11 with Django 5.2 LTS.
PRIMARY = 3.13 3.14 3.12 3.11

DB ?=
DAY ?=
ARGS ?=
ROWS ?=
SCALE ?= 10
TEST_PROCESSES ?= 3
SIDE_BY_SIDE = -n $(TEST_PROCESSES) --dist loadgroup

export PYTHONUNBUFFERED = 1
export TEST_PROCESSES

.DEFAULT_GOAL := help
.PHONY: help venv demo demo-check test test-fast faults properties conformance coverage docs lint format bench clean

help:
	@sed -n '3,14s/^#  *//p' Makefile

venv:
	@scripts/venv.sh .venv $(PRIMARY)

demo: venv
	@DEMO_DB='$(DB)' DAY='$(DAY)' $(PYTHON) manage.py demo $(ARGS)

demo-check: venv
	@DEMO_DB='$(DB)' DAY='$(DAY)' $(PYTHON) manage.py demo --check $(ARGS)

test:
	@scripts/test.sh $(ARGS)

test-fast: venv
	@TEST_DB=sqlite $(PYTHON) -m pytest $(SIDE_BY_SIDE) -m "not slow and not browser" $(ARGS)

faults properties: venv
	@worst=0; for database in sqlite postgres; do \
	    TEST_SCALE=$(SCALE) TEST_DB=$$database $(PYTHON) -m pytest $(SIDE_BY_SIDE) $(CAMPAIGN) $(ARGS) || worst=$$?; \
	done; exit $$worst
faults: CAMPAIGN = tests/faults
properties: CAMPAIGN = tests/property

conformance: venv
	@$(PYTHON) scripts/conformance.py $(ROWS)

coverage: venv
	@$(PYTHON) -m coverage erase
	@TEST_DB=sqlite $(PYTHON) -m coverage run -m pytest $(ARGS)
	@TEST_DB=postgres $(PYTHON) -m coverage run -m pytest $(ARGS)
	@$(PYTHON) -m coverage combine --quiet
	@$(PYTHON) -m coverage report

docs: venv
	@scripts/docs.sh

lint: venv
	@scripts/lint.sh

format: venv
	@$(PYTHON) -m ruff check --fix-only --quiet .
	@$(PYTHON) -m ruff format .

bench: venv
	@$(PYTHON) -m pip install --disable-pip-version-check -qq --group bench
	@$(PYTHON) -m benchmarks run $(ARGS)

clean:
	rm -rf .venv .venv-py311 .venv.lock .venv-py311.lock .pg var build dist .coverage .coverage.* htmlcov
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

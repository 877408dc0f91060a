# Every target works on a fresh machine: it builds the virtual environment it needs from pyproject.toml first.
#
#   make demo  [DB=postgres] [BACKEND=temporal] [DAY=path/to/basket_lines.csv] [ARGS="--chaos 2"]    play a real day; DATABASE_URL is honoured
#                              with BACKEND=temporal, carts and reports live on a Temporal server that the demo starts
#   make demo-check ...        the same, but exits at the end; exit status 0 only if the report reconciles
#   make test [ARGS=...]       what a commit needs, in the lanes {Python 3.11 + Django 5.2, Python 3.13 + Django 6.1} x {SQLite, PostgreSQL}
#   make test-all [PART=...]   everything: all hosts, all of tests/faults, and a Temporal server. Parts that have passed on this commit are not run again
#   make test-fast [ARGS=...]  this Python, SQLite, without the slow tests
#   make faults [SCALE=10]     the long form of tests/faults on both databases: kills, freezes, clocks, lost connections; `make test-all` runs the short one
#   make soak [SECONDS=600] [DB=sqlite] [HOST=q2]   work of every kind while processes are killed every few seconds; then checks that it adds up
#   make properties [SCALE=10] the long form of tests/property, with other examples each time; `make test` runs the short one
#                              tests run in TEST_PROCESSES=3 parallel processes
#   make conformance HOSTS=temporal [ARGS=...]   the acceptance tests, programs with a worker that dies, and the tests of the interfaces, on a real server of Temporal; HOSTS=temporal-evicted keeps no run in memory
#   make conformance [ROWS=TX,ST]   lists behaviours without a test (exit status 1 if there are any), and rewrites docs/reference/conformance.md
#   make docs                  builds the documentation, with the reference of the public names, into var/site; make lint does so as well
#   make bench [DB=sqlite] [JSON=out.json] [ARGS=...]   figures, ratios to peers, goals; docs/howto/benchmarks.md
#   make bench-data [ARGS="--runs 1000000"]    the large database that `make bench ARGS="--only grown"` measures on
#   make bench-temporal [JSON=out.json]        the same work on Temporal's dev server
#   make bench-results FILES="out.json ..."    rewrites benchmarks/RESULTS.md
#   make release [DRY=no]      builds wheel and sdist twice, compares them, and lists what a person would upload; nothing is published
#   make generated             rewrites all generated pages and kept outputs; look at the difference before you commit it
#   make lint · make format · make venv · make coverage · make clean

PYTHON = .venv/bin/python
# First choice first. Everything newer than 3.11 runs with Django 6.1, 3.11 with Django 5.2 LTS.
PRIMARY = 3.13 3.14 3.12 3.11

DB ?=
BACKEND ?=
DAY ?=
ARGS ?=
JSON ?=
DRY ?=
FILES ?=
ROWS ?=
PART ?=
SCALE ?= 10
SECONDS ?= 600
HOST ?= worker
TEST_PROCESSES ?= 3
SIDE_BY_SIDE = -n $(TEST_PROCESSES) --dist loadgroup

export PYTHONUNBUFFERED = 1
export TEST_PROCESSES

# Folders whose tests run with their runs on the tables, and with them on a cluster (tests/support/both_backends.py).
INTERFACES = $(addprefix tests/integration/,admin client console human_tasks management operations rest)

.DEFAULT_GOAL := help
.PHONY: help venv demo demo-check test test-all test-fast faults soak properties conformance coverage docs lint format generated bench bench-data bench-temporal bench-results release clean

help:
	@sed -n '3,22s/^#  *//p' Makefile

venv:
	@scripts/venv.sh .venv $(PRIMARY)

demo: venv
	@DEMO_DB='$(DB)' DEMO_BACKEND='$(BACKEND)' DAY='$(DAY)' $(PYTHON) manage.py demo $(ARGS)

demo-check: venv
	@DEMO_DB='$(DB)' DEMO_BACKEND='$(BACKEND)' DAY='$(DAY)' $(PYTHON) manage.py demo --check $(ARGS)

test:
	@scripts/test.sh $(ARGS)

test-all:
	@PART='$(PART)' INTERFACES='$(INTERFACES)' scripts/test.sh --all $(ARGS)

test-fast: venv
	@TEST_DB=sqlite $(PYTHON) -m pytest $(SIDE_BY_SIDE) -m "not slow and not browser" $(ARGS)

faults properties: venv
	@worst=0; for database in sqlite postgres; do \
	    TEST_SCALE=$(SCALE) TEST_DB=$$database $(PYTHON) -m pytest $(SIDE_BY_SIDE) $(CAMPAIGN) $(ARGS) || worst=$$?; \
	done; exit $$worst
faults: CAMPAIGN = tests/faults
properties: CAMPAIGN = tests/property

soak: venv
	@TEST_DB=$(or $(DB),postgres) $(PYTHON) -m tests.soak --seconds $(SECONDS) --host $(HOST) $(ARGS)

conformance: venv
ifdef HOSTS
	@HOSTS=$(HOSTS) TEST_DB=sqlite $(PYTHON) -m pytest $(SIDE_BY_SIDE) $(ARGS) tests/acceptance tests/property/test_cluster.py; \
	    status=$$?; BACKEND=temporal TEST_DB=sqlite $(PYTHON) -m pytest $(SIDE_BY_SIDE) $(ARGS) $(INTERFACES) || status=$$?; \
	    $(PYTHON) scripts/conformance.py --refused; exit $$status
else
	@$(PYTHON) scripts/conformance.py $(ROWS)
endif

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

# The tests that compare a kept file with the code, and write it if they are told to.
KEPT_FILES = $(shell grep -lE 'golden|UPDATE_OPENAPI' -r tests/integration/management tests/integration/rest tests/structure --include='test_*.py')

generated: venv
	@PYTHONPATH=$(CURDIR) $(PYTHON) scripts/reference.py
	@$(PYTHON) scripts/llms.py
	@UPDATE_GOLDEN=1 UPDATE_OPENAPI=1 TEST_DB=sqlite $(PYTHON) -m pytest -p no:randomly -q $(KEPT_FILES)
	@git status --short

BENCH = $(PYTHON) -m benchmarks
WITH_PACKAGES = $(PYTHON) -m pip install --disable-pip-version-check -qq --group

bench: venv
	@$(WITH_PACKAGES) bench
	@$(BENCH) run $(if $(DB),--db $(DB)) $(if $(JSON),--json '$(JSON)') $(ARGS)

bench-data: venv
	@$(BENCH) data $(ARGS)

bench-temporal: venv
	@$(BENCH) run --only one,ten,starts,latency,update,clustered --peers temporal $(if $(JSON),--json '$(JSON)') $(ARGS)

bench-results: venv
	@$(BENCH) results $(FILES)

release: venv
	@scripts/release.sh $(if $(filter no,$(DRY)),,--dry)

clean:
	rm -rf .venv .venv-py311 .venv.lock .venv-py311.lock .pg var build dist .coverage .coverage.* htmlcov
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

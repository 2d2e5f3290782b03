# Every target sets itself up; see `make help`.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
RUN_STAMP := $(VENV)/.stamp-run
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check

REAL := slow or kafka or postgres or browser
TESTS := $(BIN)/pytest -q -n 3 -m
# Half of what these take is waiting: for servers, deaths, leases. A fourth worker, and what is heavy, fill it.
WAITING := $(BIN)/pytest -q -n 4 --dist loadfile --no-loadscope-reorder -m

# The suite starts hundreds of processes: without kept byte code each compiles everything anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint check bench kafka chaos lock advisories image simulate plant faults drills mutants

help: ## the list of targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1|/' | awk -F'|' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(STAMP) ## .venv with everything development needs, and the project

# What runs needs requirements.lock only (and a build tool, to install the project itself); the tests and checkers come on top.
$(RUN_STAMP): requirements.lock requirements-build.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error[python]: Python 3.11 or newer is needed (set PYTHON=...)" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --require-hashes -r requirements.lock -r requirements-build.lock
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(STAMP): $(RUN_STAMP) requirements-dev.lock
	@$(PIP) --require-hashes -r requirements-dev.lock
	@touch $@

demo: $(RUN_STAMP) ## everything in one process: plays named scenarios, exit 0 only if every outcome is as expected
	@$(BIN)/consumer demo

lint: setup ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint ## the same, and the fast tests
	$(TESTS) "not ($(REAL) or heavy)"

test: setup ## the whole test suite, with real PostgreSQL and real Apache Kafka where they can be had
	$(TESTS) "not ($(REAL) or heavy)"
	$(WAITING) "$(REAL) or heavy"

# The peers of the benchmarks: an environment of their own, so that nobody else installs them.
PEERS := .cache/peers
PEERS_STAMP := $(PEERS)/.stamp

$(PEERS_STAMP): requirements-bench.lock
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements-bench.lock
	@touch $@

bench: setup $(PEERS_STAMP) ## benchmarks: ratios against baselines and peers measured in the same run; exit 1 below a bar
	@$(BIN)/python -m tests.bench --svg tests/bench/plot/measured.svg

kafka: setup ## a local Apache Kafka broker in the foreground
	@$(BIN)/python -m tests.support.kafka

chaos: setup ## over three hours: the fault campaign, an hour's outage of each part, ten minutes of strangers on files and on servers, 2,000 generated histories
	@$(BIN)/python -m tests.chaos
	CONSUMER_TEST_MATRIX=all $(BIN)/pytest -q -n 2 -m "$(REAL)" tests/promises/test_whatever_the_service_does_not_document_ends_in_its_own_state.py
	CONSUMER_TEST_HISTORIES=2000 $(BIN)/pytest -q --timeout 3600 -m "$(REAL)" tests/access/test_any_order.py tests/promises/test_any_life_of_the_sandbox_ends_in_its_own_state.py \
	  tests/hostile/test_a_corpus_of_odd_records_over_kafka.py tests/hostile/every_object/test_every_object_may_be_odd_over_kafka.py
	CONSUMER_TEST_HISTORIES=2000 $(BIN)/pytest -q -n 2 --timeout 7200 -m "" tests/hostile/every_object/test_every_field_of_every_object_may_be_odd.py
	CONSUMER_TEST_HISTORIES=1000 $(BIN)/pytest -q --timeout 7200 -m "" tests/replay/test_what_is_predicted_is_what_happens.py
	CONSUMER_TEST_OUTAGE=3000 $(BIN)/pytest -q --timeout 3600 -m "" tests/replay/test_six_commands_after_an_outage.py

simulate: setup ## two workers, and a sync, on one seeded loop, killed, stopped and refused, and lives of orders and subscriptions: SEEDS=n of each kind (100), SEED=n those of one seed, printed; exit 1 on any violation
	PYTHONHASHSEED=0 CONSUMER_TEST_HISTORIES=$(or $(SEEDS),100) $(BIN)/pytest -q -m "" --timeout 7200 $(if $(SEED),-s --hypothesis-seed=$(SEED) --hypothesis-verbosity=verbose) \
	  tests/simulation tests/access/test_any_order.py tests/promises/test_any_life_of_the_sandbox_ends_in_its_own_state.py

plant: setup ## mistakes that cost money or access, planted one by one in a copy: the simulation finds each; exit 1: one lives. PLANT="word" for those whose names hold it
	@$(BIN)/python -m tests.simulation $(PLANT)

faults: setup ## faults of real processes: when `status` was not green any more, which cause it named, when it was green again
	@$(BIN)/python -m tests.faults

drills: setup ## alerts, each fired by its real fault in running processes and cured as its runbook says
	@$(BIN)/python -m tests.drills

mutants: setup ## a night: single mistakes planted, each has to be noticed by a test; MODULE=path for a part, ONE_IN=n a sample (0: survivors), MINUTES=n to stop after, EACH=s of tests for each, NEAR=1 the nearest tests alone
	@$(BIN)/python -m tests.mutants $(MODULE) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(ONE_IN),--one-in $(ONE_IN)) $(if $(EACH),--each $(EACH)) $(if $(NEAR),--near)

LOCK := uv pip compile -q --no-strip-extras --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header

lock: ## rewrite the locks from pyproject.toml (needs uv)
	$(LOCK) pyproject.toml -o requirements.lock
	$(LOCK) -c requirements.lock --group build -o requirements-build.lock
	$(LOCK) -c requirements.lock --group bench -o requirements-bench.lock
	$(LOCK) -c requirements.lock -c requirements-build.lock --group dev pyproject.toml -o requirements-dev.lock

advisories: setup ## asks PyPI what is known to be vulnerable of what the locks hold (network); exit 1 when something is
	@for lock in requirements.lock requirements-build.lock requirements-bench.lock requirements-dev.lock; do \
	  $(BIN)/pip-audit --strict --disable-pip --require-hashes --progress-spinner off -r $$lock $(ADVISORIES) || exit 1; done

image: setup ## the image, twice, without an engine (root, buildah, mmdebstrap): the same digest both times; its SBOM; every role started from it
	@first=$$(deploy/image/build.sh) && second=$$(deploy/image/build.sh) && echo "$$first" && \
	  { test "$$first" = "$$second" || { echo "error[image]: another build of the same sources is $$second" >&2; exit 1; }; }
	@$(BIN)/python -m deploy.image.sbom .cache/image/sbom.json
	@$(BIN)/pytest -q -m "" tests/deploy/test_image.py

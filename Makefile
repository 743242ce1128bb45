# Everything runs from a bare clone: no root, no Docker, no database. `make` alone lists the targets.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PORT ?= 8080

# Written bytecode halves every start; a virtual environment of somebody else must not interfere.
unexport PYTHONDONTWRITEBYTECODE VIRTUAL_ENV PYTHONHOME
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: help setup browser demo test test-system test-all test-tools compat polluted chaos cluster lint docs figures bench up down clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

setup: ## Check Java and Python, make .venv from ci/requirements.lock
	@scripts/setup

browser: # what the tests of the pages run in
	@scripts/browser

demo: setup ## Run the real pipeline over real data and show the ledger
	@python -m demo

test: setup ## Run the unit and integration tests, with Spark and PostgreSQL
	@python -m tests.support.jvm
	@python -m pytest -n 2 -m "not exhaustive" tests/unit tests/integration

test-system: setup browser ## Run what users run: commands, Airflow and its pages, Connect; real crashes
	@python -m tests.support.jvm
	@python -m pytest -n 2 -m "not exhaustive" tests/acceptance tests/crashes

test-all: setup browser ## Run both, with every crash, the long runs, the short form of chaos
	@python -m tests.support.jvm
	@python -m pytest -n 2

test-tools: setup ## Run the examples of docs/comparison.md beside the tools, which are downloaded
	@python -m tests.tools

compat: export JAVA_HOME := $(or $(JAVA),$(JAVA_HOME))
compat: setup ## Run the core of the tests with the oldest and the newest versions; SET= is one of these, POSTGRES= a folder of a server's programs, JAVA= a JAVA_HOME
	@POSTGRES="$(POSTGRES)" python -m tests.compat $(SET)

polluted: setup ## Read the Pollock benchmark of polluted files in FOLDER, a copy of your own
	@python -m tests.polluted "$(FOLDER)"

chaos: setup ## Kill executors, drivers, servers while Airflow runs; SEED= repeats a run; SUBMIT=batch
	@python -m tests.chaos $(if $(SEED),--seed $(SEED)) $(if $(SUBMIT),--submit $(SUBMIT))

cluster: setup ## Run batches, losses and chaos on a Spark cluster of several users, behind PgBouncer
	@python -m tests.cluster $(if $(PART),--part $(PART))

lint: setup ## Run ruff and mypy
	@ruff check . && ruff format --check . && mypy

docs: setup ## Build the documentation as a site in var/site; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 mkdocs build --quiet --strict

figures: setup ## Count lines, functions and docstrings of the library; AT= is another checkout to compare with
	@python -m scripts.figures $(if $(AT),"$(AT)" .)

bench: setup ## Measure against plain Spark; writes benchmarks/results.json
	@python -m benchmarks

up: setup ## Start Airflow on 127.0.0.1; DAGS= and DATA= are folders of your own, which are only read
	@python -m scripts.up --port $(PORT) $(if $(DAGS),--dags "$(DAGS)") $(if $(DATA),--data "$(DATA)")

down: ## Stop what `make up` started
	@if [ -x .venv/bin/python ]; then python -m scripts.down; fi

clean: ## Remove .venv and var
	@rm -rf .venv var

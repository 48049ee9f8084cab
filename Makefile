# Everything runs from a virtual environment in .venv, which the targets make and fill themselves.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SEEDS ?= 1000
EPISODES ?= 30
# One more than there are cores: some tests wait for processes most of the time.
JOBS ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)')

.PHONY: help setup demo test torture sim check fmt crds bench test-services test-spark images e2e bench-controller clean

help:            ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## ?/\t/' | expand -t 18

# A stamp per set of packages: a target installs the least that it needs, and nothing twice.
$(VENV)/.runtime: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Penstock needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "Python's venv module is missing. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "installing the runtime into $(VENV) (once)"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	@echo "installing test and lint tools into $(VENV) (once)"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

setup: $(VENV)/.dev ## virtual environment with everything for development

demo: $(VENV)/.runtime ## hot items over a Nexmark stream, a TaskManager killed half-way, the result compared
	@$(BIN)/python examples/demo.py

test: $(VENV)/.dev ## unit, contract, integration tests, a short simulation and some kills, [JOBS=n] side by side
	@$(BIN)/pytest tests -n $(JOBS) --dist worksteal

torture: $(VENV)/.dev ## random SIGKILLs of real processes, EPISODES=n [SEED=k] [KIND="interval join"]
	@$(BIN)/pytest tests/torture -m torture --episodes=$(EPISODES) $(if $(SEED),--seed=$(SEED)) $(if $(KIND),--kind="$(KIND)") -s

sim: $(VENV)/.dev ## seeded simulation of a whole cluster, SEEDS=n [SEED=k]
	@$(BIN)/python -m penstock.testing.sim --seeds $(SEEDS) $(if $(SEED),--seed $(SEED))

check: $(VENV)/.dev ## ruff, mypy, import contracts
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports --no-cache

fmt: $(VENV)/.dev ## format and sort imports
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

crds: $(VENV)/.dev ## write crds/, and the chart's copy, from the models of the controller
	@$(BIN)/python -m penstock_operator crds crds charts/penstock/definitions

bench: $(VENV)/.dev ## figures as ratios against a peer in the same run, [ONLY=name] [CASES=q3,q8] [SCALE=0.01] [JSON=1] [PEER=flink]
	@$(BIN)/python -m benchmarks $(if $(ONLY),--only $(ONLY)) $(if $(CASES),--cases "$(CASES)") $(if $(SCALE),--scale $(SCALE)) $(if $(JSON),--json) $(if $(PEER),--peer $(PEER))

$(VENV)/.spark: $(VENV)/.dev
	@echo "installing PySpark into $(VENV) (once)"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[spark]'
	@touch $@

test-spark: $(VENV)/.spark ## tests of batches on Spark in this process; installs PySpark, and Java where there is none
	@$(BIN)/python tests/spark/java.py && $(BIN)/pytest tests/spark -m spark

test-services: $(VENV)/.dev test-spark ## tests against real S3 servers, built once into ~/.cache/penstock-services, a browser and Spark
	@$(BIN)/python tests/services/s3_servers.py && $(BIN)/python tests/services/browser.py && $(BIN)/pytest tests/services -m services

images:          ## container images, by docker, podman or buildah, [TAG=x] [PREFIX=registry/] [BASE=python:3.12-slim]
	@PREFIX="$(PREFIX)" BASE="$(BASE)" images/build $(if $(TAG),--tag $(TAG))

e2e: $(VENV)/.dev ## tests on a real Kubernetes: $KUBECONFIG, or kind, or one of its own, [ONLY="words"] [KEEP=1] [MINUTES=n]
	@$(BIN)/pytest e2e -m e2e $(if $(ONLY),-k "$(ONLY)") $(if $(KEEP),--keep) $(if $(MINUTES),--minutes=$(MINUTES))

bench-controller: $(VENV)/.dev ## the controller with FLOWJOBS=200 of them, on a real Kubernetes with pretended pods, [KEEP=1]
	@$(BIN)/python e2e/many_jobs.py --jobs $(or $(FLOWJOBS),200) $(if $(KEEP),--keep)

clean:           ## remove the virtual environment and caches
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build *.egg-info runtime/*.egg-info

# Everything people type, in one place. `make help` lists it.
.DEFAULT_GOAL := help
.PHONY: help setup train-cpu test check format logs stop rebuild clean engine base-image image-cpu sizes lock schema

JOB ?= jobs/digits.yaml
PYTHON ?= python3
ARGS ?=
python := .venv/bin/python

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22
	@echo "  JOB=jobs/x.yaml chooses the job, ARGS='--set train.epochs=3' passes options on"

train-cpu: .venv/host ## train JOB in a container on the CPU; natively where no engine answers
	@$(python) -m runtime launch $(JOB) $(ARGS)

setup: ## make the local environment with everything: training, tests, linters
	@PYTHON=$(PYTHON) scripts/setup check && touch .venv/host .venv/check

test: .venv/check ## all tests; those of the images where an engine answers
	@$(python) -m pytest -rs $(ARGS)

check: .venv/check ## format, lint, types, shell scripts, Dockerfile
	@scripts/check

format: .venv/check ## format the code
	@$(python) -m ruff format -q runtime tests && $(python) -m ruff check -q --fix runtime tests

logs: ## follow the log of the last container
	@docker logs -f "$$(docker ps -alq --filter label=com.docker.compose.service=trainer)"

stop: ## stop all training containers; each saves first
	@docker ps -q --filter label=com.docker.compose.service=trainer | xargs -r docker stop --time 60

rebuild: image-cpu ## build the CPU image again and train JOB in it
	@$(MAKE) --no-print-directory train-cpu

image-cpu: ## build the CPU image
	@scripts/image cpu

base-image: ## make a Debian base image of our own, where no registry answers
	@scripts/base-image

engine: ## set up a Docker engine on this Debian or Ubuntu host
	@scripts/engine

sizes: ## what makes up the CPU image
	@scripts/sizes cpu

lock: ## lock the requirements of the images anew
	@scripts/lock

schema: .venv/check ## write the JSON schema of the job spec
	@$(python) -m runtime schema > docs/job.schema.json

clean: ## remove the local environment and caches; runs/ stays
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache build *.egg-info docker/wheels/*.whl
	@find . -name __pycache__ -prune -exec rm -rf {} +

.venv/host: pyproject.toml
	@PYTHON=$(PYTHON) scripts/setup host && touch $@

.venv/check: pyproject.toml docker/requirements-cpu.txt
	@PYTHON=$(PYTHON) scripts/setup check && touch .venv/host $@

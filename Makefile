# All commands for people. `make help` lists them.
.DEFAULT_GOAL := help
targets := $(shell sed -n 's/^\([a-z0-9-]*\):.*\#\# .*/\1/p' $(firstword $(MAKEFILE_LIST)))
.PHONY: $(targets)

JOB ?= jobs/digits.yaml
PYTHON ?= python3
ARGS ?=
python := .venv/bin/python

# Refuse an unknown target or variable: `make train-cpu jobs/mine.yaml` would otherwise train the digits without a word.
words := $(filter-out $(targets) .venv/host .venv/check,$(MAKECMDGOALS))
files := $(filter %.yaml %.yml jobs/%,$(words))
given := $(foreach name,$(.VARIABLES),$(if $(findstring command line,$(origin $(name))),$(name)))
others := $(filter job Job jobs JOBS JBO OJB JO jbo spec SPEC args Args arg ARG AGRS ARSG,$(given)) $(foreach name,$(given),$(if $(findstring .,$(name)),$(name)))
others := $(strip $(others))
define refusal
$(if $(words),$(firstword $(words)) is not a make target,$(firstword $(others))= is not a variable of this Makefile)
  possible: JOB=FILE and ARGS='OPTIONS'
  do:       make train-cpu JOB=$(or $(firstword $(files)),jobs/mine.yaml)
endef
ifneq ($(words)$(others),)
$(error $(refusal))
endif

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-15s%s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  JOB=jobs/x.yaml selects the job, ARGS='--set train.epochs=3' passes options to the command"

# One modifier a line: make 3.81, which macOS has, reads a second one as a target.
train-cpu train-gpu: override JOB := $(value JOB)
export JOB
train-cpu: .venv/host ## train JOB on the CPU in a container; without a container if no Docker engine answers
	@$(python) -m drivetrain launch "$$JOB" $(ARGS)

train-gpu: .venv/host ## train JOB on this machine's NVIDIA GPU in a container; picks the image by GPU and driver
	@$(python) -m drivetrain launch "$$JOB" --device gpu $(ARGS)

samples: .venv/host ## make the data of the example jobs in jobs/data, the only folder it may write; ARGS='patterns --size 300' for some
	@if $(python) -c 'import numpy, pyarrow, PIL' 2>/dev/null; then $(python) -m jobs.samples.write $(ARGS); else \
	    scripts/image cpu && docker run --rm --network none --read-only --cap-drop ALL --security-opt no-new-privileges \
	        --user "$$(id -u):$$(id -g)" --mount "type=bind,source=$$PWD,target=/workspace,readonly" \
	        --mount "type=bind,source=$$PWD/jobs/data,target=/workspace/jobs/data" --workdir /workspace --env PYTHONSAFEPATH= \
	        --entrypoint python "$$(scripts/image-name)" -m jobs.samples.write $(ARGS); fi

setup: ## create .venv with everything: training, tests, linters
	@PYTHON=$(PYTHON) scripts/setup check && touch .venv/host .venv/check

test: .venv/check ## run the quick tests, two files at a time; `make test-slow` runs the others
	@$(python) -m pytest -rs -m 'not slow and not nightly' -n 2 --dist loadgroup $(ARGS)

test-slow: .venv/check ## run the tests of whole trainings, and of the images if a Docker engine answers, as CI does (20 min)
	@$(python) -m pytest -rs -m 'slow and not nightly' -n 2 --dist loadgroup $(ARGS)

test-faults: .venv/check ## run the long fault tests: 200 kills, 100 stops, 1,000 broken specs, an error at every write (hours)
	@$(python) -m pytest -m nightly -s tests $(ARGS)

test-cgroup2: .venv/check ## run the image tests on a virtual host with cgroup v2 and systemd (root, an hour, 6 GB of disk)
	@DRIVETRAIN_IMAGES=required scripts/cgroup2-host $(python) -m pytest -rs \
	    -m 'cgroup and not nightly' --durations 0 tests/docker $(ARGS)

check: .venv/check ## check format, lint, types, shell scripts, Dockerfile
	@scripts/check

format: .venv/check ## format the code
	@$(python) -m ruff format -q runtime tests docs/generate benchmarks jobs docker && $(python) -m ruff check -q --fix runtime tests docs/generate benchmarks jobs docker

doctor: .venv/host ## check this machine for problems and show the command that fixes each
	@$(python) -m drivetrain doctor

logs: ## follow the log of the newest container of this checkout
	@scripts/containers logs

stop: ## stop your training containers of this checkout; each saves a checkpoint first
	@scripts/containers stop

prune: ## remove finished containers and outdated images of this checkout, and the cache volumes that your checkouts share; keeps runs/
	@scripts/containers prune

rebuild: image-cpu ## build the CPU image again and train JOB in it
	@$(MAKE) --no-print-directory train-cpu

image-cpu: ## build the CPU image
	@scripts/image cpu

image-ampere: ## build the image for GPUs from compute capability 8.0 with driver 580
	@scripts/image ampere

image-legacy: ## build the image for GPUs from compute capability 5.0 and for older drivers
	@scripts/image legacy

images: image-cpu image-ampere image-legacy ## build all three images

base-image: ## build a Debian base image if no registry answers
	@scripts/base-image

engine: ## install a Docker engine on this Debian or Ubuntu host
	@scripts/engine

sizes: ## show the size of the built images and of their parts
	@for word in cpu ampere legacy extras; do docker image inspect "$$(scripts/image-name $$word)" >/dev/null 2>&1 && scripts/sizes $$word; done; true

sbom: ## list the parts of the built images in build/sbom-WORD.json (CycloneDX)
	@mkdir -p build && for word in cpu ampere legacy; do \
	    ! docker image inspect "$$(scripts/image-name $$word)" >/dev/null 2>&1 || \
	    docker run --rm --network none --entrypoint cat "$$(scripts/image-name $$word)" /opt/drivetrain/sbom.json > build/sbom-$$word.json || exit; done

lock: ## lock the requirements of the images again
	@for word in cpu ampere legacy extras; do scripts/lock $$word || exit; done

schema: .venv/check ## write the JSON schema of the job file
	@$(python) -m drivetrain validate --schema > docs/job.schema.json

golden: .venv/check ## write tests/golden: all optimizations, a plan, and the settings for all recorded machines
	@$(python) -m docs.generate.decision_table jobs/digits.yaml tests/machines > tests/golden/decisions.md
	@$(python) -m docs.generate.defaults_page tests/machines > tests/golden/defaults.md
	@$(python) -m docs.generate.reference optimizations > tests/golden/optimizations.md
	@$(python) -m drivetrain plan jobs/digits.yaml --hardware tests/machines/codespace-2core-cgroup2.json | sed 's/ *$$//' > tests/golden/plan.txt

messages: .venv/check ## write reworded messages into tests/golden/messages.json, where tests miss them; ARGS=tests/data for some tests
	@DRIVETRAIN_REWRITE_MESSAGES=1 $(python) -m pytest -m 'not nightly' -n 2 --dist loadgroup $(ARGS); \
	    status=$$?; $(python) -m tests.messages && exit $$status

reference: .venv/check ## write docs/spec.md
	@$(python) -m docs.generate.reference spec > docs/spec.md

peers: .venv/check ## create the environment of the other trainers for `make benchmark`
	@scripts/peers

benchmark: .venv/check ## compare with other trainers and a reference loop; ARGS='C1 C3' for some rows, ARGS=--smoke to try
	@$(python) benchmarks/peers.py $(ARGS)

clean: ## remove .venv and caches; keeps runs/
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache build *.egg-info docker/wheels/*.whl
	@find . -name __pycache__ -prune -exec rm -rf {} +

.venv/host: pyproject.toml
	@PYTHON=$(PYTHON) scripts/setup host && touch $@

.venv/check: pyproject.toml docker/requirements-cpu.txt docker/unused/aside
	@PYTHON=$(PYTHON) scripts/setup check && touch .venv/host $@

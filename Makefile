# Everything people type, in one place. `make help` lists it.
.DEFAULT_GOAL := help
targets := help sbom setup train-cpu train-gpu decisions images image-ampere image-legacy test test-faults readme reference peers benchmark check format doctor logs stop rebuild clean prune engine base-image image-cpu sizes lock schema
.PHONY: $(targets)

JOB ?= jobs/digits.yaml
PYTHON ?= python3
ARGS ?=
python := .venv/bin/python

# make would train the digits for a job that it was not told of: by a word that is no target, or by another variable.
words := $(filter-out $(targets) .venv/host .venv/check,$(MAKECMDGOALS))
files := $(filter %.yaml %.yml jobs/%,$(words))
given := $(foreach name,$(.VARIABLES),$(if $(findstring command line,$(origin $(name))),$(name)))
others := $(filter job Job jobs JOBS spec SPEC args Args arg ARG,$(given)) $(foreach name,$(given),$(if $(findstring .,$(name)),$(name)))
others := $(strip $(others))
define refusal
$(if $(words),$(firstword $(words)) is no target of make,$(firstword $(others))= is no variable of this Makefile)
  possible: JOB=FILE and ARGS='OPTIONS'
  do:       make train-cpu JOB=$(or $(firstword $(files)),jobs/mine.yaml)
endef
ifneq ($(words)$(others),)
$(error $(refusal))
endif

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22
	@echo "  JOB=jobs/x.yaml chooses the job, ARGS='--set train.epochs=3' passes options on"

train-cpu train-gpu: override export JOB := $(value JOB)
train-cpu: .venv/host ## train JOB in a container on the CPU; natively where no engine answers
	@$(python) -m runtime launch "$$JOB" $(ARGS)

train-gpu: .venv/host ## train JOB in a container on this machine's NVIDIA GPU; the image follows chip and driver
	@$(python) -m runtime launch "$$JOB" --device gpu $(ARGS)

setup: ## make the local environment with everything: training, tests, linters
	@PYTHON=$(PYTHON) scripts/setup check && touch .venv/host .venv/check

test: .venv/check ## all tests, two files at a time; those of the images where an engine answers
	@$(python) -m pytest -rs -n 2 --dist loadgroup $(ARGS)

test-faults: .venv/check ## the long faults: 200 kills, 100 stops, 1,000 broken specs, an error at every write (hours)
	@$(python) -m pytest -m nightly -s tests/faults tests/docker tests/job_spec $(ARGS)

check: .venv/check ## format, lint, types, shell scripts, Dockerfile
	@scripts/check

format: .venv/check ## format the code
	@$(python) -m ruff format -q runtime tests docs/generate && $(python) -m ruff check -q --fix runtime tests docs/generate

doctor: .venv/host ## what is wrong on this machine, with the command that mends it
	@$(python) -m runtime doctor

logs: ## follow the log of the last container of this checkout
	@scripts/containers logs

stop: ## stop the training containers of this checkout that you started; each saves first
	@scripts/containers stop

prune: ## remove the ended containers of this checkout and your cache volumes; runs/ stays
	@scripts/containers prune

rebuild: image-cpu ## build the CPU image again and train JOB in it
	@$(MAKE) --no-print-directory train-cpu

image-cpu: ## build the CPU image
	@scripts/image cpu

image-ampere: ## build the image for GPUs from capability 8.0 with driver 580
	@scripts/image ampere

image-legacy: ## build the image for GPUs from capability 5.0 and for older drivers
	@scripts/image legacy

images: image-cpu image-ampere image-legacy ## build all three images

base-image: ## make a Debian base image of our own, where no registry answers
	@scripts/base-image

engine: ## set up a Docker engine on this Debian or Ubuntu host
	@scripts/engine

sizes: ## what makes up the images that are built
	@for word in cpu ampere legacy; do docker image inspect localhost/drivetrain/$$word >/dev/null 2>&1 && scripts/sizes $$word; done; true

sbom: ## the parts of the images that are built, in build/sbom-WORD.json (CycloneDX)
	@mkdir -p build && for word in cpu ampere legacy; do \
	    ! docker image inspect localhost/drivetrain/$$word >/dev/null 2>&1 || \
	    docker run --rm --network none --entrypoint cat localhost/drivetrain/$$word /opt/drivetrain/sbom.json > build/sbom-$$word.json || exit; done

lock: ## lock the requirements of the images anew
	@for word in cpu ampere legacy; do scripts/lock $$word || exit; done

schema: .venv/check ## write the JSON schema of the job spec
	@$(python) -m runtime schema > docs/job.schema.json

decisions: .venv/check ## write the table of decisions on all recorded machines
	@$(python) -m docs.generate.decision_table jobs/digits.yaml tests/machines > docs/decisions.md

readme: .venv/check ## write the plan that the README shows
	@$(python) -m docs.generate.readme_plan README.md

reference: .venv/check ## write the references of the spec and of the optimizations
	@for page in spec optimizations; do $(python) -m docs.generate.reference $$page > docs/$$page.md || exit; done

peers: .venv/check ## the environment of the peers that `make benchmark` measures against
	@scripts/peers

benchmark: .venv/check ## the table against peers and a loop by hand; ARGS='C1 C3' for some rows, ARGS=--smoke to try
	@$(python) benchmarks/peers.py $(ARGS)

clean: ## remove the local environment and caches; runs/ stays
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache build *.egg-info docker/wheels/*.whl
	@find . -name __pycache__ -prune -exec rm -rf {} +

.venv/host: pyproject.toml
	@PYTHON=$(PYTHON) scripts/setup host && touch $@

.venv/check: pyproject.toml docker/requirements-cpu.txt
	@PYTHON=$(PYTHON) scripts/setup check && touch .venv/host $@

# All commands for people. `make help` lists them.
.DEFAULT_GOAL := help
targets := $(shell sed -n 's/^\([a-z0-9-]*\):.*\#\# .*/\1/p' $(firstword $(MAKEFILE_LIST)))
.PHONY: $(targets)

JOB ?= jobs/digits.yaml
PYTHON ?= python3
ARGS ?=
python := .venv/bin/python

# Refuse unknown targets and variables; otherwise `make train-cpu jobs/mine.yaml` would silently train jobs/digits.yaml.
# JOB and ARGS are for people. The scripts, Docker and make itself read the other variables.
variables := JOB ARGS PYTHON EXTRAS PROGRESS TORCH_INDEX BASE_IMAGE DEBIAN_% DRIVETRAIN_% CGROUP2_% MAKE% -% GNUMAKEFLAGS
unknown_targets := $(filter-out $(targets) .venv/host .venv/check .venv-peers/ready,$(MAKECMDGOALS))
job_files := $(filter %.yaml %.yml jobs/%,$(unknown_targets))
assigned := $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name)))
unknown_variables := $(strip $(filter-out $(variables),$(assigned)))
define refusal
$(if $(unknown_targets),$(firstword $(unknown_targets)) is not a make target,$(firstword $(unknown_variables))= is not a variable of this Makefile)
  possible: JOB=FILE and ARGS='OPTIONS'
  do:       make train-cpu JOB=$(or $(firstword $(job_files)),jobs/mine.yaml)
endef
ifneq ($(unknown_targets)$(unknown_variables),)
$(error $(refusal))
endif

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-15s%s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  JOB=jobs/x.yaml selects the job, ARGS='--set train.epochs=3' passes options to the command"

# Export JOB literally, so that $ and spaces in a path survive. `override` and `export` need separate lines: make 3.81 of
# macOS would read a second modifier as a target.
train-cpu train-gpu: override JOB := $(value JOB)
export JOB
train-cpu: .venv/host ## train JOB on the CPU in a container; without a container if no Docker engine answers
	@$(python) -m drivetrain launch "$$JOB" $(ARGS)

train-gpu: .venv/host ## train JOB on this machine's NVIDIA GPU in a container; picks the image by GPU and driver
	@$(python) -m drivetrain launch "$$JOB" --device gpu $(ARGS)

samples: .venv/host ## create the data of the example jobs in jobs/data; ARGS='patterns --size 300' for one of them
	@# Without numpy, pyarrow and Pillow on the host, use a container that can write only to jobs/data.
	@if $(python) -c 'import numpy, pyarrow, PIL' 2>/dev/null; then $(python) -m jobs.samples.write $(ARGS); else \
	    scripts/image cpu && docker run --rm --network none --read-only --cap-drop ALL --security-opt no-new-privileges \
	        --user "$$(id -u):$$(id -g)" --mount "type=bind,source=$$PWD,target=/workspace,readonly" \
	        --mount "type=bind,source=$$PWD/jobs/data,target=/workspace/jobs/data" --workdir /workspace --env PYTHONSAFEPATH= \
	        --entrypoint python "$$(scripts/env image)" -m jobs.samples.write $(ARGS); fi

setup: ## create .venv with the packages for training, tests and linters
	@PYTHON=$(PYTHON) scripts/setup check && touch .venv/host .venv/check

test: .venv/check ## run the quick tests in two processes; `make test-slow` runs the other tests
	@$(python) -m pytest -rs -m 'not slow and not nightly' -n 2 --dist loadgroup $(ARGS)

test-slow: .venv/check ## run the slow tests: whole trainings, and images if a Docker engine is available (20 min)
	@$(python) -m pytest -rs -m 'slow and not nightly' -n 2 --dist loadgroup $(ARGS)

check: .venv/check ## check format, lint, types, shell scripts, Dockerfile
	@scripts/check

format: .venv/check ## format the code
	@$(python) -m ruff format -q runtime tests docs/generate benchmarks jobs docker && $(python) -m ruff check -q --fix runtime tests docs/generate benchmarks jobs docker

doctor: .venv/host ## check this machine for problems and print the command that fixes each of them
	@$(python) -m drivetrain doctor

logs: ## show and follow the log of the newest container of this checkout
	@scripts/containers logs

stop: ## stop your training containers of this checkout; each saves a checkpoint first
	@scripts/containers stop

prune: ## remove finished containers and outdated images of this checkout, and the shared cache volumes; keeps runs/
	@scripts/containers prune

image-cpu: ## build the CPU image
	@scripts/image cpu

image-ampere: ## build the image for GPUs from compute capability 8.0 with driver 580
	@scripts/image ampere

image-legacy: ## build the image for GPUs from compute capability 5.0 and for older drivers
	@scripts/image legacy

engine: ## install a Docker engine on this Debian or Ubuntu host
	@scripts/engine

reference: .venv/check ## update the generated files: docs/spec.md, docs/job.schema.json and tests/golden
	@$(python) -m docs.generate.reference spec > docs/spec.md
	@$(python) -m drivetrain validate --schema > docs/job.schema.json
	@$(python) -m docs.generate.decision_table jobs/digits.yaml tests/machines > tests/golden/decisions.md
	@$(python) -m docs.generate.defaults_page tests/machines > tests/golden/defaults.md
	@$(python) -m docs.generate.reference optimizations > tests/golden/optimizations.md
	@$(python) -m drivetrain plan jobs/digits.yaml --hardware tests/machines/codespace-2core-cgroup2.json | sed 's/ *$$//' > tests/golden/plan.txt

messages: .venv/check ## update reworded messages in tests/golden/messages.json; ARGS=tests/data runs only some tests
	@DRIVETRAIN_REWRITE_MESSAGES=1 $(python) -m pytest -m 'not nightly' -n 2 --dist loadgroup $(ARGS); \
	    status=$$?; $(python) -m tests.messages && exit $$status

benchmark: .venv-peers/ready ## compare with other trainers and a reference loop; ARGS='C1 C3' for some rows, ARGS=--smoke for a quick check
	@$(python) benchmarks/peers.py $(ARGS)

.venv/host: pyproject.toml
	@PYTHON=$(PYTHON) scripts/setup host && touch $@

.venv/check: pyproject.toml docker/requirements-cpu.txt docker/unused/aside
	@PYTHON=$(PYTHON) scripts/setup check && touch .venv/host $@

# The other trainers have their own environment, which also uses the packages of .venv.
.venv-peers/ready: benchmarks/requirements-peers.txt .venv/check
	@$(python) -m venv $(@D)
	@$(python) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth"
	@$(@D)/bin/python -m pip --disable-pip-version-check install --quiet -r $< && touch $@

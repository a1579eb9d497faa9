# make setup: this machine's stack, RFT_STACK=gpu or cpu the other, RFT_STACK=cpu-0.9.4 or cpu-0.9.10 a newer OpenRLHF.
# make quick: what to run before a commit, in minutes. make test: before a merge, cheap gates first. make runs: whole runs of other
# tasks, broken, killed, resumed; continuous integration runs it after make test. make unit, make lint: those alone. make clusters:
# several hosts. They set up the CPU stack, in which all tests run. make test-next: check, unit, stack and runs with the newer
# OpenRLHF. tests/README.md says what is where.
SHELL := bash
.SHELLFLAGS := -Eeuo pipefail -c
.NOTPARALLEL:
unexport PYTHONDONTWRITEBYTECODE

# The stack that tests run in, and its interpreter, wherever launch/stack.sh says it is.
STACK := cpu
PYTHON := $(shell RFT_STACK=$(STACK) bash -c '. launch/common.sh; printf %s "$${PYTHON#"$$ROOT"/}"')
SCRIPTS = $(shell find . -name '.[!.]*' ! -name .ci -prune -o -path ./runs -prune -o \( -name '*.sh' -o -path ./.ci/run \) -print)

# $(call stage,COMMANDS): run them under the target's name and print how long they took.
stage = @printf '==> %s\n' '$@'; start=$$(date +%s); { $(1); }; printf '==> %s: %d s\n' '$@' $$(($$(date +%s) - start))
pytest = $(call stage,$(PYTHON) -m pytest $(1))

.PHONY: quick test test-next setup cpu-stack lint check unit overlay code short commands stack runs clusters

quick: cpu-stack lint check unit overlay short

test: cpu-stack lint check unit overlay code commands stack

# A stack to which the series has been carried by rebase (docs/overlay.md); the other one: make test-next NEXT=cpu-0.9.10.
NEXT := cpu-0.9.4
test-next:
	@$(MAKE) --no-print-directory STACK=$(NEXT) check unit stack runs

setup:
	$(call stage,bash -c '. launch/common.sh; setup_env' setup)

cpu-stack:
	$(call stage,RFT_STACK=$(STACK) bash -c '. launch/common.sh; setup_env' setup)

lint: cpu-stack
	$(call stage,$(PYTHON) -m ruff check .; $(PYTHON) -m ruff format --check .; $(dir $(PYTHON))shellcheck -x $(SCRIPTS))

check: cpu-stack
	$(call stage,$(PYTHON) -m rft.overlay check --python $(PYTHON))

# A quarter of their time they wait.
unit overlay: cpu-stack
	$(call pytest,tests/$@ --numprocesses 3)

# The real code server: attacks, canonical and wrong programs, load. Sandboxes wait as much as they work: two at once.
# Each attack waits a minute for what it left: on a host on which something always is, five of them tell as much as all.
code: cpu-stack
	$(call pytest,tests/code --numprocesses 2 --maxfail 5)

# One real run: rollouts, updates, syncs and evaluations, until its rate has destroyed the model and a rule stops it.
short: cpu-stack
	$(call pytest,tests/runs/test_broken_runs.py::test_exploding_learning_rate_and_evaluations)

# What users call: the scripts, the evaluation, whose engines keep 1 GB of KV cache each until their process ends, and jobs on a
# real Slurm of three nodes in namespaces, which train nothing (as root, else they skip). They wait more than they work: four at
# once, by file, since the tests of launch/spare.sh share one sshd and those of jobs a Slurm; files that wait long first.
EVALUATION := tests/stack/test_evaluation.py
WAITING := tests/shell/test_launched_servers.py tests/clusters/test_slurm_jobs.py
commands: cpu-stack
	$(call pytest,$(EVALUATION) $(WAITING) tests/shell --numprocesses 4 --dist loadfile --no-loadscope-reorder)

# Several hosts, in network namespaces of this machine: needs root, and skips by name where they are not allowed. Not part of
# `make test`, but for the jobs.
clusters: cpu-stack
	$(call pytest,tests/clusters --durations 15)

# The real stack, with its patches and without each. Two files at once: a start leaves cores idle, and takes up to 8 GB.
# Long files first, so that both end together.
LONGEST := $(addprefix tests/stack/test_,training_run.py benchmarks.py sft_run.py)
side_by_side = --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 15
stack: cpu-stack
	$(call pytest,tests/patches $(LONGEST) tests/stack --ignore $(EVALUATION) $(side_by_side))

# Whole runs beside the one that `stack` shares: of other tasks, and such as break, are killed or stopped, and resumed.
runs: cpu-stack
	$(call pytest,$(addprefix tests/runs/test_,loud_failure.py search_agent.py broken_runs.py) tests/runs $(side_by_side))

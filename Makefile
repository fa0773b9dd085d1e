# `make help` lists the targets. Everything is installed into .venv from the pinned files in requirements/.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
# uv from PATH, or one of our own, which is installed by the hashes of requirements/uv.txt.
UV := $(or $(shell command -v uv 2>/dev/null),.uv-bootstrap/bin/uv)
BIN := .venv/bin
# Python keeps what it has compiled: or each process would compile all packages that it imports again, for seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all k8s-test docs fuzz lint setup live bpf dist image sbom lock lean clean help

# Without the live parts the demo still simulates, trains and judges, and says in its last line what is missing.
demo: .venv/.train ## train an agent in the simulator, compare it with the baselines, try it on real UPFs, report
	-@$(MAKE) --no-print-directory live
	$(BIN)/slicepilot demo

# SLICEPILOT_REQUIRE_LIVE=1 makes a skipped test a failure; SLICEPILOT_THOROUGH=1 tries more examples and repetitions.
test: .venv/.dev ## run the tests, in ten minutes on two cores (PYTEST_ARGS="-k reward" for some of them)
	-@$(MAKE) --no-print-directory live
	@tests/run.sh quick $(PYTEST_ARGS)

test-all: .venv/.dev ## run all tests, the slow ones and Go's fuzz targets (FUZZ_TIME each) too
	-@$(MAKE) --no-print-directory live
	@tests/run.sh all $(PYTEST_ARGS)

# As root, on Debian or Ubuntu. The first time it builds Kubernetes, which takes some ten minutes on two cores.
k8s-test: .venv/.dev ## run the tests on a Kubernetes cluster of one node, which it builds and starts here
	-@$(MAKE) --no-print-directory live
	@tests/packages.sh
	@tests/cluster/build.sh
	@tests/charts/build.sh
	$(BIN)/pytest -q tests/charts tests/cluster $(PYTEST_ARGS)

docs: .venv/.dev ## write the site into build/site, with a page of all commands and of their JSON
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

fuzz: .venv/.dev ## fuzz everything that reads what others write, for FUZZ_TIME in all (1h)
	-@$(MAKE) --no-print-directory live
	$(BIN)/python tests/fuzzing.py $(FUZZ_TIME)

lint: .venv/.dev ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright

setup: .venv/.dev ## install everything for development into .venv (TORCH=locked: PyTorch with CUDA)

lean: .venv/.lean ## install what needs no PyTorch: simulate, evaluate, run with rules and exported policies
	@echo "installed without PyTorch: train, tune and sb3: policies need make setup"

live: build/bin/.built bpf ## build the user plane (Go) and the probe (BPF), with what they need
	@echo "build/bin and the programs of controller/telemetry/bpf are up to date"

build/bin/.built: testbed/go.mod testbed/go.sum $(shell find testbed -name '*.go' -not -name '*_test.go') | $(UV)
	@mkdir -p build/bin
	@go=$$(testbed/go.sh) && cd testbed && CGO_ENABLED=0 "$$go" build -trimpath -o ../build/bin/ ./cmd/...
	@touch $@

bpf:
	@testbed/system.sh
	@controller/telemetry/bpf/build.sh

# The wheel is built from the source distribution, so what is missing there shows here. SLICEPILOT_WHEEL=pure leaves the
# programs out, GOARCH=arm64 builds them for another machine.
dist: export SLICEPILOT_WHEEL ?= platform
dist: .venv/.dev ## build the source distribution and this platform's wheel into dist, and check them
	rm -rf dist
	@go=$$(testbed/go.sh) && PATH=$$(dirname "$$go"):$$PATH $(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

# As root, on Debian: buildah without a daemon, and no registry. `deploy/docker/build.sh --context` is for other builders.
image: .venv/.dev ## build the image of the Kubernetes agent into build/image/agent.tar (IMAGE=name:tag)
	-@$(MAKE) --no-print-directory live
	@deploy/docker/build.sh --tag $(IMAGE) --out build/image/agent.tar

IMAGE = localhost/slicepilot-agent:latest

sbom: .venv/.dev ## write the software bill of materials (CycloneDX) into build/
	@$(BIN)/python deploy/supply/bill.py

# UPGRADE=--upgrade takes the newest versions that pyproject.toml allows; without it the pins stay.
lock: $(UV) ## compile requirements/*.txt from pyproject.toml (UPGRADE=--upgrade for newer versions)
	$(LOCK) requirements/dev.txt --extra train --extra ray --extra rllib --extra pettingzoo --extra kubernetes --group dev $(UPGRADE)
	$(LOCK) requirements/train.txt --extra train --group build --constraints requirements/dev.txt
	$(COMPILE) --group go $(UPGRADE) --output-file requirements/go.txt
	$(COMPILE) --group uv $(UPGRADE) --output-file requirements/uv.txt
	$(COMPILE) --group kuberay --constraints requirements/dev.txt --output-file requirements/kuberay.txt
	$(LOCK) requirements/base.txt --constraints requirements/dev.txt
	$(LOCK) requirements/lean.txt --extra evaluate --group build --constraints requirements/dev.txt
	$(LOCK) requirements/agent.txt --extra kubernetes --constraints requirements/dev.txt

COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
	--generate-hashes --no-emit-index-url --no-annotate --custom-compile-command "make lock"
LOCK = $(COMPILE) pyproject.toml --output-file

clean: ## remove .venv, caches and everything that runs have written
	rm -rf .venv .uv-bootstrap .tools .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build
	rm -rf runs artifacts reports mlruns mlartifacts mlflow.db
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# dev.txt holds all of train.txt, so a development environment serves the demo too.
.venv/.dev: requirements/dev.txt pyproject.toml | $(UV) .venv/bin/python
	$(call install,requirements/dev.txt)
	@touch .venv/.train .venv/.lean $@

.venv/.train: requirements/train.txt pyproject.toml | $(UV) .venv/bin/python
	@rm -f .venv/.dev
	$(call install,requirements/train.txt)
	@touch .venv/.lean $@

.venv/.lean: requirements/lean.txt pyproject.toml | $(UV) .venv/bin/python
	@rm -f .venv/.dev .venv/.train
	$(call install,requirements/lean.txt)
	@touch $@

define install
	@requirements/install.sh $(UV) $(1)
	$(UV) pip install --python .venv --quiet --no-deps --no-build-isolation --editable .
endef

.venv/bin/python: | $(UV)
	@$(UV) venv --quiet --clear --python '>=3.11,<3.14' .venv \
		|| { echo "slicepilot needs Python 3.11, 3.12 or 3.13: install one of them and run make again." >&2; exit 1; }

.uv-bootstrap/bin/uv: requirements/uv.txt
	@command -v $(PYTHON) >/dev/null \
		|| { echo "slicepilot needs Python 3.11, 3.12 or 3.13: there is no $(PYTHON) on PATH." >&2; exit 1; }
	@$(PYTHON) -m venv .uv-bootstrap >/dev/null \
		|| { rm -rf .uv-bootstrap; echo "$(PYTHON) cannot make a virtual environment: install python3-venv, or uv." >&2; exit 1; }
	.uv-bootstrap/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@touch $@

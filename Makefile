# `make help` lists the targets. Variables to override: PYTHON, VENV, MPI (auto, system, mpich), BASE (an environment that has all
# packages but MPI for VENV), PARTS, EPOCHS, RUNS (the folder of `make run`), PYTEST_FLAGS; of the targets for a GPU: PYTHON, GPU_PYTHON, GPU_WHEELS, GPU_SECONDS,
# GPU_JOBS (processes that test kernels at a time: compiling them takes longer than running them).
SHELL := bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run test test-fast coverage faults mutation campaign audit check check-types check-style check-texts docs env dev-env
.PHONY: native test-native test-mpich deps-debian clean test-gpu bench-gpu gpu-wheels

PYTHON ?= python3
VENV ?= .venv
MPI ?= auto
PARTS ?= 4
EPOCHS ?= 100
RUNS ?= run
GPU_PYTHON ?= 3.12
GPU_SECONDS ?= 570
GPU_JOBS ?= 8

BIN := $(VENV)/bin
NATIVE := $(wildcard native/*.cpp native/*.h)
NATIVE_TESTS := $(wildcard tests/native/*.cpp tests/native/*.h tests/native/openmp/*.cpp)
PYTHON_CODE := examples hpcgnn native tests tools setup.py
SCRIPTS := .ci/run jobs/mpirun.sh jobs/slurm.sbatch $(wildcard tools/*.sh hpcgnn/lab/virtual/*.sh)
# Tests and commands start hundreds of processes: none compiles Python files anew, not even in a container that asks for it.
unexport PYTHONDONTWRITEBYTECODE
# One stamp for each MPI: asking for another one changes the environment.
STAMP := $(VENV)/.stamp-$(MPI)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# -- the first run: digits, cut into PARTS and trained on as many ranks ------------------------------------------------

run: $(RUNS)/digits-$(PARTS).h5 ## build the environment, then convert, partition and train a real graph on 4 MPI ranks
	$(BIN)/hpcgnn launch -n $(PARTS) -- $(BIN)/hpcgnn train $< --out $(RUNS)/digits-$$(date +%Y%m%d-%H%M%S) --epochs $(EPOCHS)

$(RUNS)/digits.h5: $(wildcard hpcgnn/data/*.py hpcgnn/sources/*.py) | native
	@mkdir -p $(RUNS) && rm -f $@
	$(BIN)/hpcgnn convert digits $@

$(RUNS)/digits-$(PARTS).h5: $(RUNS)/digits.h5 $(wildcard hpcgnn/partition/*.py hpcgnn/plan/*.py) | native
	@rm -f $@
	$(BIN)/hpcgnn partition $< $@ --parts $(PARTS)

# -- the environment ---------------------------------------------------------------------------------------------------

env: native ## build the environment in .venv (PYTHON=, MPI=auto|system|mpich)
	@echo "Installed in $(VENV). Next: source $(VENV)/bin/activate, then hpcgnn doctor"

dev-env: $(STAMP)-dev native

$(STAMP): setup.cfg setup.py pyproject.toml constraints.txt tools/environment.sh
	tools/environment.sh -p $(PYTHON) -m $(MPI) $(if $(BASE),-b $(BASE)) $(VENV)
	@rm -f $(VENV)/.stamp-* && touch $@

$(STAMP)-dev: $(STAMP)
	tools/environment.sh -p $(PYTHON) -m $(MPI) -x dev $(VENV)
	@touch $@

# The package is installed editable: Python files need nothing after an edit, native ones this.
# It is loaded through a C ABI, so it is the same for all environments.
native: build/.native-built
build/.native-built: $(NATIVE) native/build.py setup.py | $(STAMP)
	$(BIN)/python setup.py -q build_ext --inplace
	@mkdir -p build && touch $@

# -- tests -------------------------------------------------------------------------------------------------------------

# Processes take one file after the other, in the order of tests/conftest.py. There is one more than cores in the smallest machine
# that we use where launches, Slurm and slow links leave cores idle.
BY_FILES := --dist loadfile --no-loadscope-reorder

test: check ## run every check and every test, the rank tests under a real mpirun
	$(BIN)/python -m pytest -n 3 $(BY_FILES) $(PYTEST_FLAGS)

test-fast: dev-env ## in 2 minutes: no ranks but those of one launch, no emulator, nothing compiled for a test, nothing slow
	$(BIN)/python -m pytest -n 2 $(BY_FILES) $(PYTEST_FLAGS) \
	    -m "first_launch or not (launches or slurm or virtual_cluster or builds or emulator or slow)"

coverage: dev-env ## every test, and how many lines of hpcgnn/ they run, also on ranks: at least 95 %
	@rm -rf build/coverage && mkdir -p build/coverage
	$(BIN)/coverage run -m pytest -n 3 $(BY_FILES) --junitxml build/coverage/tests.xml $(PYTEST_FLAGS)
	$(BIN)/coverage combine -q
	$(BIN)/coverage report --fail-under=95

FAULTS ?=
faults: dev-env ## put known faults into the package, one at a time: the tests named for each must fail
	$(BIN)/python tools/mutation faults $(FAULTS)

MUTATION ?= --sample 300 --seed 1
mutation: coverage ## for hours: draw mutants of the core by a seed; tests that run their lines must kill 90 % of those not equivalent
	$(BIN)/python tools/mutation score $(MUTATION)

docs: dev-env ## the documentation site in build/site; every warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

check: dev-env ## lint, format, type and prose checks
	+@$(MAKE) --no-print-directory -j 2 --output-sync check-types check-style check-texts

check-types: ; $(BIN)/mypy hpcgnn
check-style:
	$(BIN)/ruff check $(PYTHON_CODE)
	$(BIN)/ruff format --check $(PYTHON_CODE)
	$(BIN)/clang-format --dry-run -Werror $(NATIVE) $(NATIVE_TESTS)
	$(BIN)/shellcheck $(SCRIPTS)
check-texts:
	$(BIN)/python tools/prose.py
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-workflows .github/workflows/*.yml

audit: dev-env ## with a network: known vulnerabilities of the pinned versions
	$(BIN)/python -m pip install -q pip-audit && $(BIN)/pip-audit -r constraints.txt --no-deps --disable-pip

test-native: dev-env ## the native kernels alone: on this CPU, under sanitizers, and as ARM code in an emulator
	$(BIN)/python -m pytest tests/native $(PYTEST_FLAGS)

CAMPAIGN ?= --short
campaign: dev-env ## break things from outside: kills, full disks, cut links, long runs (CAMPAIGN="--minutes 240 --out docs/reliability")
	$(BIN)/python -m pytest $(PYTEST_FLAGS) tools/campaign/tests
	$(BIN)/python tools/campaign $(CAMPAIGN)

test-mpich: dev-env ## the first run and what is about MPI in a second environment, with PyPI's mpich
	$(MAKE) BASE=$(VENV) VENV=.venv-mpich MPI=mpich RUNS=run/mpich run
	.venv-mpich/bin/python -m pytest $(PYTEST_FLAGS) -m "mpi and not system_mpi"

# -- a machine with a GPU ----------------------------------------------------------------------------------------------

# PYTHON has torch with CUDA there: no environment is built, and nothing is fetched where `make gpu-wheels` was run before.
define with-gpu-python
@settings=$$(tools/gpu_python.sh -p $(PYTHON)) && readarray -t settings <<< "$$settings" && \
	run() { env "$${settings[@]}" $(PYTHON) "$$@"; } && $(1)
endef

test-gpu: ## on a machine with a GPU, by its PYTHON: the kernels in Triton, and training
	$(call with-gpu-python,{ \
	    run -m pytest $(PYTEST_FLAGS) tests/gpu/test_training.py; training=$$?; \
	    run -m pytest $(PYTEST_FLAGS) tests/kernels -n $(GPU_JOBS) -k "triton-on-gpu or test_triton"; kernels=$$?; \
	    exit $$((training > kernels ? training : kernels)); })

bench-gpu: ## the same for what is required of a GPU, measured: build/gpu/report.md and build/gpu-training/report.md
	$(call with-gpu-python,{ \
	    ends=$$((SECONDS + $(GPU_SECONDS))); missed=0; \
	    for study in gpu gpu-training; do \
	        left=$$((ends > SECONDS ? ends - SECONDS : 1)); \
	        timeout --signal=INT "$$left" env "$${settings[@]}" $(PYTHON) -m hpcgnn study run "$$study" --out "build/$$study"; \
	        run -m hpcgnn study report "build/$$study"; run -m hpcgnn study check "build/$$study" || missed=1; \
	    done; \
	    exit $$missed; })

gpu-wheels: ## with a network: what PYTHON on such a machine may lack, for its version (GPU_PYTHON=3.12)
	tools/gpu_python.sh -p $(PYTHON) -f $(GPU_PYTHON) $(GPU_WHEELS)

# -- the machine -------------------------------------------------------------------------------------------------------

deps-debian: ## (root) install OpenMPI, ParMETIS, PT-Scotch, Slurm, iproute2 and an ARM emulator on Debian
	tools/deps_debian.sh
	@rm -f $(VENV)/.stamp-*  # the environment may now take the system's MPI

clean: ## remove everything that make made: environments, builds, caches and run/
	rm -rf .venv .venv-mpich build run *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis hpcgnn/kernels/_native*.so
	find hpcgnn tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

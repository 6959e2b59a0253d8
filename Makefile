# SPDX-License-Identifier: Apache-2.0
# `make help` lists the targets. Nothing needs to be installed before but Python 3.10+, a C++20 compiler and make; a second
# call is quick. `make truth`, `trust` and `bench` write benchmarks/results/ (docs/internals/tests.md says what each holds).
# Of the steps before demo and test, compiled and torch can run side by side (make -j2 compiled torch).
# PYTHON: the Python to build with. Where it has a torch that works, demo and test take that one; else they say how large
#   the download is before it begins. TORCH=torch==X installs another version in any case.
# TORCH_INDEX=https://download.pytorch.org/whl/cpu: another index to install torch from, this one has builds without CUDA.
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
DEMO_DIR ?= demo-run
PYTEST ?= -q

# Tests start our command more than a thousand times, and Python compiles its modules each time if it may not keep them.
unexport PYTHONDONTWRITEBYTECODE
# Ninja would take a pool of `make -j` that setup.py does not hand on to it, and complain.
unexport MAKEFLAGS

bin := $(VENV)/bin
cores := $(shell getconf _NPROCESSORS_ONLN)
workers := $(shell expr $(cores) + 4)
# "/", ":" and "%" cannot stand in the name of a file or of a target; everything else of a requirement can.
torch_name := $(TORCH)$(if $(TORCH_INDEX),@$(TORCH_INDEX))
torch_stamp := $(VENV)/.installed-$(subst %,_,$(subst :,_,$(subst /,_,$(torch_name))))
quick_tests := tests/schema tests/format $(addprefix tests/analysis/,steps collectives compare stragglers links stalls) \
  tests/architecture/test_layers.py tests/architecture/test_docs_fresh.py
sources := CMakeLists.txt setup.py pyproject.toml $(shell find csrc -type f 2>/dev/null)

.PHONY: help demo quick test thorough truth trust bench docs changelog native torch compiled clean
.DELETE_ON_ERROR:

help:  ## List the targets
	@sed -nE 's/^([a-z]+):.*  ## (.*)/  make \1|\2/p' Makefile | while IFS='|' read -r name text; do printf '%-18s%s\n' "$$name" "$$text"; done

demo: $(VENV)/.built $(torch_stamp)  ## Record a real training job of two ranks, and say what slows it down
	$(bin)/python examples/train_ddp.py --generate-only
	rm -rf $(DEMO_DIR)
	$(bin)/stashtrace run --out $(DEMO_DIR) -- \
	  $(bin)/torchrun --standalone --nproc-per-node 2 examples/train_ddp.py

# Pure Python on made-up timelines: no job is started, nothing is compiled.
quick: $(VENV)/.built $(VENV)/.test-tools  ## Run the tests of pure Python analysis: under a minute
	$(bin)/python -m pytest $(PYTEST) -n $(workers) --maxprocesses 8 --dist loadfile -m "not slow and not thorough and not truth and not trust" \
	  $(quick_tests)

# A worker takes whole files, so that what a file sets up once is set up once; those with slow tests first, where xdist
# would take those with most tests (tests/conftest.py). Tests wait for more than half of their time, so there are four
# workers more than cores. One that hangs ends the run, by name.
whole_files := -n $(workers) --maxprocesses 8 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 \
  -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true

test: $(VENV)/.built $(torch_stamp) $(VENV)/.tests-compiled  ## Build everything and run the tests: a quarter of an hour
	$(bin)/python -m pytest $(PYTEST) $(whole_files) -m "not thorough and not truth and not trust" tests

# All that `make test` runs, and what judges the project rather than each change: docs/internals/tests.md says what that is.
thorough: $(VENV)/.built $(torch_stamp) $(VENV)/.tests-compiled $(VENV)/.thorough-tools $(VENV)/.frameworks  ## Run the tests and what takes longer: half an hour
	frameworks="$$(cd $(VENV)/frameworks && pwd)/bin/python"; \
	STASHTRACE_TRACKERS_PYTHON="$$frameworks" STASHTRACE_RAY_PYTHON="$$frameworks" \
	  $(bin)/python -m pytest $(PYTEST) $(whole_files) --hypothesis-profile thorough -m "not truth and not trust" tests benchmarks/tests

# About an hour, on a machine that does nothing else. All three parts run, whatever one of them finds.
truth: $(VENV)/.built $(torch_stamp) $(VENV)/.test-tools  ## Inject faults and compare amounts: about an hour, on a quiet machine
	@failed=0; \
	$(bin)/python -m pytest $(PYTEST) -m truth --record benchmarks/results/truth.json tests || failed=1; \
	$(bin)/python benchmarks/ground_truth.py || failed=1; \
	$(bin)/python benchmarks/bench_sentences.py --write || failed=1; \
	$(bin)/python benchmarks/characterize_truth.py --repeat 3 --iterations 20 --null 10 --null-only --name characterize_null || failed=1; \
	exit $$failed

# About an hour and a half. Parts that have a whole result of this commit are not run again; PARTS=scenes,kill chooses,
# LIMIT=20 ends each part after as many minutes.
trust: $(VENV)/.built $(VENV)/.test-tools $(VENV)/.trust-tools  ## Attack, kill and fuzz recorded jobs: about an hour and a half
	$(bin)/python benchmarks/trust.py $(if $(PARTS),--parts $(PARTS)) $(if $(LIMIT),--limit $(LIMIT))

# What judges the figures is judged first.
bench: $(VENV)/.built $(torch_stamp) $(VENV)/.test-tools  ## Run every benchmark: about an hour, on a quiet machine
	$(bin)/python -m pytest $(PYTEST) benchmarks/tests
	$(bin)/python benchmarks/run_all.py

torch: $(torch_stamp)  ## Provide torch, as demo and test do

compiled: $(VENV)/.compiled  ## Build the native code of the environment, as demo and test do

docs: $(VENV)/.test-tools  ## Build the site into build/site
	$(bin)/python -m mkdocs build --strict

native:  ## Build the shared objects into stashtrace/, without an environment
	"$(PYTHON)" setup.py build_ext --inplace

changelog: $(VENV)/.test-tools  ## Print what changes/ says of the next version
	@$(bin)/python -m towncrier build --draft

clean:  ## Remove the environment, what was built, and the run of the demo
	rm -rf $(VENV) build $(DEMO_DIR) stashtrace/*.so

$(VENV)/.made:
	"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10) and "error: Python 3.10 or newer is needed: make PYTHON=...")'
	"$(PYTHON)" -m venv $(VENV)
	touch $@

# One stamp at a time: what was installed for another TORCH is no longer there.
$(torch_stamp): $(VENV)/.tools
	"$(PYTHON)" scripts/provide_torch.py $(VENV) --requirement "$(TORCH)" --index-url "$(TORCH_INDEX)" \
	  $(if $(filter file,$(origin TORCH)),,--install)
	@rm -f $(VENV)/.installed-*
	@touch $@

# Build tools; before torch, so that nothing else installs into the environment while torch is fetched beside the compiler.
$(VENV)/.tools: $(VENV)/.made pyproject.toml
	$(bin)/python -m pip install -q "setuptools>=77" wheel "scikit-build-core[setuptools]>=1.0,<2" "pybind11>=2.13" "cmake>=3.24" ninja
	touch $@

$(VENV)/.compiled: $(VENV)/.tools $(sources)
	$(bin)/python setup.py -q build_ext --inplace
	touch $@

# Not isolated: the build tools are in the environment already, and the build folder is kept between calls, so that
# nothing is compiled again.
$(VENV)/.built: $(VENV)/.compiled
	$(bin)/python -m pip install -q --no-build-isolation -e .
	touch $@

$(VENV)/.test-tools: $(VENV)/.built pyproject.toml
	$(bin)/python -m pip install -q --no-build-isolation -e ".[test,docs]"
	touch $@

# Once, by all cores: each worker would compile all tests for itself. What cannot be collected is told by the run that
# follows.
$(VENV)/.tests-compiled: $(VENV)/.test-tools
	@find tests -name 'test_*.py' | xargs -P $(cores) -n 120 $(bin)/python -m pytest -q --collect-only >/dev/null || true
	@touch $@

# Schemas of Kubernetes, and the models of an operator: 150 MB.
$(VENV)/.thorough-tools: $(VENV)/.test-tools
	$(bin)/python -m pip install -q --no-build-isolation -e ".[test,docs,thorough]"
	touch $@

# Trackers and frameworks, 740 MB, in an environment of their own: what they require would change that of the tests, whose
# torch and other packages they see.
frameworks := wandb mlflow-skinny tensorboard trackio lightning transformers accelerate "ray[train]"
$(VENV)/.frameworks: $(VENV)/.test-tools $(torch_stamp)
	$(bin)/python -m venv --clear $(VENV)/frameworks
	$(bin)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  >"$$($(VENV)/frameworks/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tests.pth"
	$(VENV)/frameworks/bin/python -m pip install -q $(frameworks)
	touch $@

# Darshan logs are read by their own library.
$(VENV)/.trust-tools: $(VENV)/.test-tools
	$(bin)/python -m pip install -q --no-build-isolation -e ".[test,docs,darshan]"
	touch $@

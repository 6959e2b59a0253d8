# SPDX-License-Identifier: Apache-2.0
# demo: own virtual environment, a real two-rank training job, its summary.    test: the same environment, all tests.
# truth: five runs of every scenario of tests/ground_truth, into benchmarks/results/ground_truth.md.
# native: build both shared objects into stashtrace/, for work from a checkout.
# Nothing needs to be installed before but Python 3.10+, a C++20 compiler and make; a second call is quick.
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
DEMO_DIR ?= demo-run
PYTEST ?= -q

bin := $(VENV)/bin
# ":" cannot stand in a target name; everything else of a requirement can.
torch_stamp := $(VENV)/.installed-$(subst :,_,$(subst /,_,$(TORCH)))
sources := CMakeLists.txt setup.py pyproject.toml $(shell find csrc -type f 2>/dev/null)

.PHONY: demo test truth native clean
.DELETE_ON_ERROR:

demo: $(VENV)/.built $(torch_stamp)
	$(bin)/python examples/train_ddp.py --generate-only
	rm -rf $(DEMO_DIR)
	$(bin)/stashtrace run --out $(DEMO_DIR) -- \
	  $(bin)/torchrun --standalone --nproc-per-node 2 examples/train_ddp.py

# Tests that neither measure time nor fill the machine with jobs run side by side, then the others one by one.
# Exit code 5 of pytest is "no test was chosen": fine for one of the two.
side_by_side := $(addprefix tests/,analysis architecture cli exporters importers report unit)

test: $(VENV)/.built $(torch_stamp) $(VENV)/.test-tools
	@failed=0; empty=0; \
	for part in "-n auto --maxprocesses 8 --dist loadfile $(side_by_side)" "$(addprefix --ignore=,$(side_by_side)) tests"; do \
	  echo "$(bin)/python -m pytest $(PYTEST) $$part"; \
	  $(bin)/python -m pytest $(PYTEST) $$part; code=$$?; \
	  if [ $$code = 5 ]; then empty=$$((empty + 1)); elif [ $$code != 0 ]; then failed=$$code; fi; \
	done; \
	if [ $$empty = 2 ]; then failed=5; fi; \
	exit $$failed

# Not part of the tests: about ten minutes, on a machine that does nothing else.
truth: $(VENV)/.built $(torch_stamp)
	$(bin)/python benchmarks/ground_truth.py

native:
	$(PYTHON) setup.py build_ext --inplace

clean:
	rm -rf $(VENV) build $(DEMO_DIR) stashtrace/*.so

$(VENV)/.made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "error: Python 3.10 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(bin)/python -m pip install -q "setuptools>=77" wheel "pybind11>=2.13" "cmake>=3.24" ninja
	touch $@

# Pillow makes the example's images real JPEG files.
$(torch_stamp): $(VENV)/.made
	$(bin)/python -m pip install -q "$(TORCH)" numpy pillow
	touch $@

# Not isolated: the build tools are in the environment already, and the build folder is kept between calls.
$(VENV)/.built: $(VENV)/.made $(sources)
	$(bin)/python -m pip install -q --no-build-isolation -e .
	touch $@

$(VENV)/.test-tools: $(VENV)/.built pyproject.toml
	$(bin)/python -m pip install -q --no-build-isolation -e ".[test]"
	touch $@

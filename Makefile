# SPDX-License-Identifier: Apache-2.0
# native: build both shared objects into stashtrace/, for work from a checkout.
PYTHON ?= python3

.PHONY: native
native:
	$(PYTHON) setup.py build_ext --inplace

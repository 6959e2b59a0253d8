"""Run the analyses over the files of many ranks with Dask."""

# SPDX-License-Identifier: Apache-2.0

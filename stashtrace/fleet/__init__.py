"""The same analyses over the files of many ranks, by Dask."""

# SPDX-License-Identifier: Apache-2.0

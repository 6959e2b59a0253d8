"""Run the analyses over the files of many ranks with Dask."""

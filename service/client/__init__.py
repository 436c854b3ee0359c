"""A client of the API, for the commands and the benchmarks."""

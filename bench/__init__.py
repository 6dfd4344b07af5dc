"""Benchmarks: `make bench NAME=capture`. Each measures us and the limit or peer in the same run; the last line is one JSON object."""

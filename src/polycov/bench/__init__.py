"""Benchmarks: time and memory of the pools, and the accuracy of sketches."""

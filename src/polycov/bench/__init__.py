"""Benchmarks as a command: ``polycov bench``."""

"""Benchmarks: the same work with and without tracking, in interleaved rounds of one session."""

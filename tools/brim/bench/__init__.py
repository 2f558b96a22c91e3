"""Benchmarks that answer a question: two ways of doing the same work, in turn on the same machine, and a verdict."""

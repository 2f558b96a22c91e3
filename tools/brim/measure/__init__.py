"""Measuring a served model: the real perf_analyzer, Triton's batch statistics, and concurrent single-row callers."""

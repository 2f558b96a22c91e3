"""Limits that the whole project shares."""

BATCH_LIMIT = 100
"""Most rows that one execution may carry. The GPU takes no more; every ``max_batch_size`` follows from it."""

DEFAULT_TRITON_RELEASE = "24.10"
"""Release of the embedded tritonserver, and the one that the linter assumes."""

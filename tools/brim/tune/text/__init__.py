"""Tuning text generation: chunk size, seats, KV cache and the batch class's part of them, for the service's traffic and SLO."""

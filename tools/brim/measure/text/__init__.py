"""Measuring token models: callers of streams, traffic with lengths, and what became of it in the words of token models."""

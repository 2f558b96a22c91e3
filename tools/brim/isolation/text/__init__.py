"""Isolation of a language model's callers: texts, streams, KV blocks and seats, by the contract of Triton's vLLM backend."""

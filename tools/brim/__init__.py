"""Brim: fill every Triton batch to the brim, spill nobody's request."""

__version__ = "0.1.0"

"""The ``brim`` command. Data goes to stdout, words for people to stderr."""

from brim.cli.app import main

__all__ = ["main"]

"""The configuration linter: ``lint_paths``."""

from brim.lint.check import lint_paths

__all__ = ["lint_paths"]

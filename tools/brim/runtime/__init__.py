"""What runs for each dynamic batch: guard, limit padding, run, find the rows that fail, scatter."""

from brim.runtime.batch import BatchRuntime, Planner
from brim.runtime.contract import Contract, TensorSpec
from brim.runtime.guard import Guard, InputRules
from brim.runtime.outcome import Answer, Failure, Outcome, Reason, Refusal
from brim.runtime.padding import PaddingCost, PaddingStats

__all__ = [
    "Answer",
    "BatchRuntime",
    "Contract",
    "Failure",
    "Guard",
    "InputRules",
    "Outcome",
    "PaddingCost",
    "PaddingStats",
    "Planner",
    "Reason",
    "Refusal",
    "TensorSpec",
]

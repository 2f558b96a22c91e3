"""Models that hurt their callers on purpose, each in one way, and one that does not."""

from __future__ import annotations

from pathlib import Path

CONFIG = """
name: "{name}"
backend: "python"
max_batch_size: 100
input [ {{ name: "X" data_type: {kind} dims: [{size}] }} ]
output [ {{ name: "Y" data_type: TYPE_FP32 dims: [{size}] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
dynamic_batching {{ }}
"""
# The model sleeps, so that whoever is sent meanwhile shares the next batch.
MODEL = """
import pathlib
import time

import numpy as np
import triton_python_backend_utils as pb_utils

EVERY = 150


def answer(array):
    return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.ascontiguousarray(array))])


def refuse(text):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, pb_utils.TritonError.INVALID_ARG))


class TritonPythonModel:
    def initialize(self, args):
        self.seen = 0
        self.mark = 0
        self.owed = False
        self.folder = pathlib.Path(args["model_repository"])

    def due(self, count):
        "True once in every EVERY requests that come in company."
        if count < 2:
            return False
        self.seen += count
        if self.seen // EVERY == self.mark:
            return False
        self.mark = self.seen // EVERY
        return True

    def execute(self, requests):
        time.sleep(0.004)
        arrays = [pb_utils.get_input_tensor_by_name(one, "X").as_numpy() for one in requests]
        return self.run(requests, arrays)

    def run(self, requests, arrays):
        return [answer(x * 2 + 1) if np.isfinite(x).all() else refuse("values that are not finite") for x in arrays]
"""
FAULTS = {
    "rows_swapped": """
        found = [answer(x * 2 + 1) for x in arrays]
        if self.due(len(found)):
            found[0], found[1] = found[1], found[0]
        return found
""",
    "answer_twice": """
        found = [answer(x * 2 + 1) for x in arrays]
        if self.due(len(found)):
            found[1] = found[0]
        return found
""",
    "neighbour_added": """
        found = [x * 2 + 1 for x in arrays]
        if self.due(len(found)):
            found[0] = found[0] + 0.01 * arrays[1].sum(dtype=np.float32)
        return [answer(y) for y in found]
""",
    "batch_norm": """
        scale = np.float32(1) / np.concatenate(arrays).max()
        return [answer(x * scale) for x in arrays]
""",
    "quotes_neighbour": """
        all_of_them = np.concatenate(arrays).tolist()
        return [
            answer(x * 2 + 1) if np.isfinite(x).all() else refuse(f"not finite: {all_of_them}") for x in arrays
        ]
""",
    "fails_whole": """
        if not np.isfinite(np.concatenate(arrays)).all():
            raise ValueError("values that are not finite")
        return [answer(x * 2 + 1) for x in arrays]
""",
    "one_row_each": """
        rows = np.concatenate(arrays) * 2 + 1
        return [answer(rows[number : number + 1]) for number in range(len(requests))]
""",
    "gone_fails_all": """
        if any(one.is_cancelled() for one in requests):
            raise ValueError("a caller has gone")
        return [answer(x * 2 + 1) for x in arrays]
""",
    "never_answers": """
        if not self.due(len(arrays)):
            return [answer(x * 2 + 1) for x in arrays]
        for one, x in list(zip(requests, arrays))[1:]:
            one.get_response_sender().send(answer(x * 2 + 1), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        self.kept = requests[0].get_response_sender()
        return [None for _ in requests]
""",
    "swapped_rarely": """
        found = [x * 2 + 1 for x in arrays]
        before, self.seen = self.seen, self.seen + sum(map(len, arrays))
        self.owed |= self.seen // 10_000 != before // 10_000
        if self.owed and len(found) > 1:
            self.owed = False
            found[0][-1], found[1][0] = found[1][0].copy(), found[0][-1].copy()
        return [answer(y) for y in found]
""",
    "padding_counts": """
        texts = [x.ravel()[0] for x in arrays]
        longest = max(1, *map(len, texts))
        return [answer(np.array([[sum(text) / longest]], np.float32)) for text in texts]
""",
    "parameter_fails_all": """
        if any("no_such_parameter" in one.parameters() for one in requests):
            raise ValueError("an unknown parameter")
        return [answer(x * 2 + 1) for x in arrays]
""",
    "mixes_models": """
        other = self.folder.parent / FIRST / "used"
        found = [x * 2 + 1 for x in arrays]
        if len(found) > 1 and other.exists() and time.time() - other.stat().st_mtime < 0.05:
            found[0] = found[0] + 1
        return [answer(y) for y in found]
""",
    "worse_each_load": """
        return [answer(x * 2 + self.loads) for x in arrays]

    def initialize(self, args):
        count = pathlib.Path(args["model_repository"]) / "loads"
        self.loads = len(count.read_text()) if count.exists() else 0
        count.write_text("x" * (self.loads + 1))
""",
    "full_batch_swapped": """
        found = [answer(x * 2 + 1) for x in arrays]
        if sum(map(len, arrays)) == 100 and len(found) > 1 and len(arrays[0]) == len(arrays[-1]):
            found[0], found[-1] = found[-1], found[0]
        return found
""",
    "poison_stops_all": """
        bad = [not np.isfinite(x).all() for x in arrays]
        time.sleep(0.1 * any(bad))
        return [refuse("values that are not finite") if no else answer(x * 2 + 1) for no, x in zip(bad, arrays)]
""",
}
"""Name -> the body of ``run``."""
FIRST = "a_first"
"""The other model of every check of two, since the suite takes the first by name. It notes when it is used."""
NOTES = """
        (self.folder / "used").touch()
        return [answer(x * 2 + 1) for x in arrays]
"""
TEXTS = frozenset(["padding_counts"])
"""Models with one text of any length as a row."""
NAMED = {
    "rows_swapped": "identity",
    "answer_twice": "identity",
    "neighbour_added": "identity",
    "batch_norm": "batch_invariance",
    "quotes_neighbour": "own_errors_only",
    "fails_whole": "poison_neighbours",
    "one_row_each": "row_counts",
    "gone_fails_all": "caller_gone",
    "never_answers": "identity",
    "swapped_rarely": "row_counts",
    "padding_counts": "unequal_lengths",
    "parameter_fails_all": "malformed_neighbours",
    "mixes_models": "two_models",
    "worse_each_load": "reload_under_load",
    "full_batch_swapped": "deterministic_batches",
}
"""Planted fault -> the check that must name it."""
COLUMN = {
    "rows_swapped": "wrong",
    "answer_twice": "wrong",
    "neighbour_added": "wrong",
    "batch_norm": "wrong",
    "quotes_neighbour": "wrong",
    "fails_whole": "neighbour_errors",
    "one_row_each": "wrong",
    "gone_fails_all": "neighbour_errors",
    "never_answers": "hung",
    "swapped_rarely": "wrong",
    "padding_counts": "wrong",
    "parameter_fails_all": "neighbour_errors",
    "mixes_models": "wrong",
    "worse_each_load": "wrong",
    "full_batch_swapped": "wrong",
}
"""Planted fault -> the count in which it must show there."""


def write_models(repository: Path) -> list[str]:
    """A clean model, ``FIRST`` and one model for each fault; their names."""
    for name, body in {"clean": "", FIRST: NOTES, **FAULTS}.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        kind, size = ("TYPE_STRING", 1) if name in TEXTS else ("TYPE_FP32", 4)
        (version.parent / "config.pbtxt").write_text(CONFIG.format(name=name, kind=kind, size=size), encoding="utf-8")
        text = MODEL.replace("EVERY = 150", f'EVERY = 150\nFIRST = "{FIRST}"')
        (version / "model.py").write_text(
            text + (f"\n    def run(self, requests, arrays):{body}" if body else ""), encoding="utf-8"
        )
    return ["clean", FIRST, *FAULTS]

"""The right answer to each row, as the bytes that carry it, so that every answer of a long run can be held against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from tritonclient.utils import serialize_byte_tensor

from brim.errors import AnswerIsNo
from brim.measure.callers import Row, ask_all
from brim.measure.plan import Protocol
from brim.server.endpoint import Endpoint

TOLERANCE = 1e-4
"""How far a value may be from the one alone, relative to 1 + its size: kernels for other batch sizes add up in another order."""
ANSWER_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class RightAnswer:
    """The outputs of one row in the server's order.

    Attributes:
        values: of each output.
        raw: their bytes in KServe's binary form, one after the other.
    """

    values: tuple[npt.NDArray[Any], ...]
    raw: bytes

    @classmethod
    def of(cls, outputs: Mapping[str, npt.NDArray[Any]]) -> Self:
        """From tensors by name, in the order in which the server gives them."""
        values = tuple(outputs.values())
        return cls(values, b"".join(_bytes_of(value) for value in values))

    def is_matched_by(self, raw: bytes) -> bool:
        """Whether these bytes carry the same values, floating-point ones within ``TOLERANCE``."""
        if raw == self.raw:
            return True
        if len(raw) != len(self.raw):
            return False
        at = 0
        for value in self.values:
            expected = _bytes_of(value)
            part = raw[at : at + len(expected)]
            at += len(expected)
            if part != expected and not _is_near(part, value):
                return False
        return True


def _is_near(part: bytes, value: npt.NDArray[Any]) -> bool:
    if value.dtype.kind != "f":
        return False
    found = np.frombuffer(part, value.dtype).reshape(value.shape)
    return bool(np.all(np.abs(found - value) <= TOLERANCE * (1 + np.abs(value))))


def _bytes_of(value: npt.NDArray[Any]) -> bytes:
    if value.dtype.kind in "OSU":
        packed = serialize_byte_tensor(value)
        return bytes(packed.item()) if packed.size else b""
    return np.ascontiguousarray(value).tobytes()


def right_answers(
    endpoint: Endpoint, model: str, rows: Sequence[Row], truth: Sequence[Row] | None = None
) -> list[RightAnswer]:
    """What the model answers to each row that is alone in its batch.

    Args:
        endpoint: where the model is served; nobody else asks it yet.
        model: its name.
        rows: with the batch dimension 1 in front.
        truth: what each answer must be, by tensor name, where that is known without the server.

    Raises:
        AnswerIsNo: a row is not answered, or not with the truth.
    """
    answers = ask_all(endpoint.http, Protocol.HTTP, model, rows, 1, ANSWER_TIMEOUT_S)
    found = []
    for index, answer in enumerate(answers):
        if answer.outputs is None:
            why = answer.error.message if answer.error else "no answer"
            raise AnswerIsNo(f"{model}: row {index} alone is not answered: {why}", hint="`brim isolate` looks closer")
        right = RightAnswer.of(answer.outputs)
        if truth is not None and not RightAnswer.of(
            {name: truth[index][name] for name in answer.outputs}
        ).is_matched_by(right.raw):
            raise AnswerIsNo(
                f"{model}: row {index} alone is answered wrongly", hint=f"`brim export {model} --force` makes it anew"
            )
        found.append(right)
    return found

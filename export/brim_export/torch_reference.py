"""What torch says in float32: what generated tokens are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

TIE = 1e-3
"""Logits so close that the order of float32's sums may decide between them; two right programs may then differ."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """The first place at which torch would have gone on otherwise: index into the text, its token, and torch's."""

    index: int
    token: int
    wanted: int


@dataclass(frozen=True, slots=True)
class Checked:
    """How a text compares.

    Attributes:
        disagreement: the first token that is another one than torch's, and no tie with it; None when there is none.
        others: tokens that are another one, ties among them.
        behind: how far the last likely of these is behind torch's token, in logits.
        lead: smallest lead of a likeliest token over the next, in logits.
    """

    disagreement: Disagreement | None
    others: int
    behind: float
    lead: float


class TorchReference:
    """A causal language model of transformers, and what it would say."""

    def __init__(self, module: Any) -> None:
        """Around a module in float32."""
        self._module = module.eval()

    def greedy(self, prompt: Sequence[int], length: int) -> list[int]:
        """The likeliest token, so many times; each time over the whole text, without a cache that could be wrong."""
        text: list[int] = []
        with torch.inference_mode():
            for _ in range(length):
                logits = self._module(torch.tensor([[*prompt, *text]])).logits[0, -1]
                text.append(int(logits.argmax()))
        return text

    def check(self, prompt: Sequence[int], text: Sequence[int]) -> Checked:
        """Whether greedy decoding from ``prompt`` gives ``text``, token by token.

        One run answers for every token: the likeliest token after prompt + text[:i] has to be text[i] for each i, which is
        what decoding one by one would ask.
        """
        with torch.inference_mode():
            logits = self._module(torch.tensor([[*prompt, *text[:-1]]])).logits[0, len(prompt) - 1 :]
            best = torch.topk(logits, 2)
            behind = best.values[:, 0] - logits.gather(1, torch.tensor(text)[:, None])[:, 0]
        lead = float((best.values[:, 0] - best.values[:, 1]).min())
        others = [index for index, gap in enumerate(behind.tolist()) if not gap <= 0]
        far = [index for index in others if not behind[index] <= TIE]
        first = Disagreement(far[0], text[far[0]], int(best.indices[far[0], 0])) if far else None
        return Checked(first, len(others), float(behind.max()), lead)

    def rounded(self) -> TorchReference:
        """The same with every matrix as half precision holds it. This one is changed, too: there is memory for one."""
        with torch.no_grad():
            for weights in self._module.parameters():
                if weights.ndim > 1:
                    weights.copy_(weights.half())
        return self

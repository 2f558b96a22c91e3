"""What a language model has to show before it is served; ``brim_export.language_model`` lists the gates."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from brim.engine.engine import Sampling
from brim.engine.openvino_engine import OpenVinoEngine
from brim.errors import InputError, ModelFileError
from brim_export.gates import GateResult, refused
from brim_export.language_model_record import KnownText
from brim_export.torch_reference import Checked, TorchReference

PARITY_TOKENS = 393
PROMPTS = (
    "Once upon a time",
    "The capital of France is",
    "<|im_start|>user\nWrite a haiku about the sea.<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n",
    "Der schnelle braune Fuchs",
    "1 2 3 4 5 6",
    "<|im_start|>user\nExplain why the sky is blue.<|im_end|>\n<|im_start|>assistant\n",
    "Dear Sir or Madam,\n\n",
)
"""Beginnings of the texts that are compared; together they get ``PARITY_TOKENS`` tokens."""
TEXTS = (
    *PROMPTS,
    "caf\u00e9 \U0001f600:\n\nok",
    "\u65e5\u672c\u8a9e \u0627\u0644\u0639\u0631\u0628\u064a\u0629",
    "  \t\r\n 0123456789 \u2028",
    "It's HALF-past 10:45, isn't it?!",
    "if x:\n    1 ==  22\n",
)
LONGEST_PROMPT_TOKENS = 256
KNOWN_TOKENS = 16
"""Of each text, in the record: enough to tell one model from another, and soon asked for."""
ROUNDING = 0.1
"""Logits by which rounding to half precision may decide between two tokens: the one is at most a tenth likelier."""

Cut = Callable[[str], Sequence[int]]
"""A tokenizer's tokens of a text, nothing put before or behind it."""


def vocabulary(engine: OpenVinoEngine, own: Cut | None) -> GateResult:
    """Whether texts come back from their tokens' bytes as they were, and are cut as the model's own tokenizer cuts them.

    Args:
        engine: with the model loaded.
        own: the tokenizer that came with the model, where there is one in another form than the engine's.

    Raises:
        ModelFileError: the vocabulary is not a byte-level one.
    """
    tokenizer = engine.tokenizer
    table = tokenizer.table
    specials = {token: piece for piece, token in tokenizer.vocabulary.items() if not table[token]}
    faults = []
    if not 0 <= tokenizer.end_of_text < len(table):
        faults.append("no token ends a text (eos_token)")
    for text in TEXTS:
        tokens = tokenizer.tokens_of(text, most=LONGEST_PROMPT_TOKENS)
        again = b"".join(specials.get(token, table[token]) for token in tokens)
        if again != text.encode():
            faults.append(f"{text!r} comes back as {again!r}")
        elif own is not None and tokens != list(own(text)):
            faults.append(f"{text!r} is cut into {tokens[:8]}..., and by tokenizer.json into {list(own(text))[:8]}...")
    if faults:
        return refused("vocabulary", faults, "serve this model with the profile vllm")
    shown = json.dumps(specials.get(tokenizer.end_of_text, table[tokenizer.end_of_text]).decode(errors="replace"))
    return GateResult(
        "vocabulary",
        True,
        f"{len(TEXTS)} texts come back from their tokens{', which are those of tokenizer.json' if own else ''}; "
        f"{len(specials)} of {len(table)} are special; {shown} ends a text",
    )


def texts_of(engine: OpenVinoEngine) -> list[list[int]]:
    """Greedy texts after ``PROMPTS``, all in one batch, ``PARITY_TOKENS`` tokens together.

    Raises:
        InputError, ModelFileError: see ``generate``.
    """
    return generate(engine, _prompts(engine), _shares(PARITY_TOKENS, len(PROMPTS)))


def known_texts(engine: OpenVinoEngine, texts: Sequence[Sequence[int]]) -> list[KnownText]:
    """How the texts begin, for whoever asks a server for them."""
    table = engine.tokenizer.table
    beginnings = [text[:KNOWN_TOKENS] for text in texts]
    return [
        KnownText(
            prompt=prompt,
            tokens=len(tokens),
            text=b"".join(table[token] for token in tokens).decode("utf-8", "replace"),
        )
        for prompt, tokens in zip(PROMPTS, beginnings, strict=True)
    ]


def parity(engine: OpenVinoEngine, texts: Sequence[Sequence[int]], reference: TorchReference) -> GateResult:
    """Whether the texts that the engine generates together are, token by token, what torch says of each prompt alone.

    Where they are not, rounding the weights to half precision may be all there is to it: then torch says the same with the
    weights as they were rounded, and was all but undecided (``ROUNDING``) with those of the source.
    """
    prompts = _prompts(engine)

    def check(by: TorchReference) -> list[Checked]:
        return [by.check(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]

    checks = check(reference)
    faults = _disagreements(checks)
    lead, behind = min(one.lead for one in checks), max(one.behind for one in checks)
    others, total = sum(one.others for one in checks), sum(map(len, texts))
    seen = {"smallest_lead": lead, "others": float(others), "behind": behind}
    reason = "the accuracy of float32"
    if faults:
        reason = "rounding to half precision: with weights so rounded torch says the same"
        if behind > ROUNDING or _disagreements(check(reference.rounded())):
            return refused("parity", faults, "convert the model anew, or serve it with the profile vllm", seen)
    told = f"; {others} more are at most {behind:.1e} logits behind torch's, which is {reason}" if others else ""
    return GateResult(
        "parity",
        True,
        f"{total - others} of {total} greedy tokens are those of torch in float32{told}; "
        f"the closest second choice was {lead:.1e} behind",
        seen,
    )


def _disagreements(checks: Sequence[Checked]) -> list[str]:
    return [
        f"after {prompt!r} token {one.disagreement.index} is {one.disagreement.token}, "
        f"and torch says {one.disagreement.wanted}"
        for prompt, one in zip(PROMPTS, checks, strict=True)
        if one.disagreement is not None
    ]


def unchecked_parity() -> GateResult:
    """In the place of ``parity``, of a model that brings nothing to compare with."""
    return GateResult(
        "parity",
        True,
        "not checked against torch: an OpenVINO folder has no weights that torch could read",
        skipped=True,
    )


def together(engine: OpenVinoEngine, texts: Sequence[Sequence[int]]) -> GateResult:
    """Whether the texts that the engine generates together are those that it generates one by one."""
    prompts, lengths = _prompts(engine), [len(text) for text in texts]
    alone = [generate(engine, [prompt], [length])[0] for prompt, length in zip(prompts, lengths, strict=True)]
    faults = [
        f"after {prompt!r} the text is another one with neighbours than alone"
        for prompt, one, other in zip(PROMPTS, texts, alone, strict=True)
        if list(one) != other
    ]
    if faults:
        return refused("together", faults, "export the model anew, without a precision below 16 bits")
    return GateResult("together", True, f"{sum(lengths)} greedy tokens are the same with seven neighbours and alone")


def _prompts(engine: OpenVinoEngine) -> list[list[int]]:
    return [engine.tokenizer.tokens_of(prompt, most=LONGEST_PROMPT_TOKENS) for prompt in PROMPTS]


def _shares(total: int, parts: int) -> list[int]:
    return [total // parts + (1 if index < total % parts else 0) for index in range(parts)]


def generate(engine: OpenVinoEngine, prompts: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[list[int]]:
    """Greedy texts of exactly these lengths, all in one batch, in the order of their prompts.

    Raises:
        InputError: the engine does not finish them in as many steps as they can need.
        ModelFileError: the engine cannot run the model.
    """
    texts: Mapping[int, list[int]] = {number: [] for number in range(len(prompts))}
    for number, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        engine.add(number, prompt, Sampling(max_tokens=length, temperature=0, ignore_eos=True))
    unfinished = set(texts)
    for _ in range(max(lengths) + sum(map(len, prompts))):
        try:
            step = engine.step()
        except RuntimeError as error:
            raise ModelFileError(
                f"the engine cannot run the model: {str(error).strip().splitlines()[-1]}",
                hint="convert the model anew",
            ) from error
        for produced in step.produced:
            texts[produced.sequence_id].extend(produced.tokens)
            if produced.finish is not None:
                unfinished.discard(produced.sequence_id)
        if not unfinished:
            return list(texts.values())
    raise InputError(f"the engine left {len(unfinished)} texts unfinished", hint="look at what it printed")

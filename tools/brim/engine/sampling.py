"""The sampling options of a request, by the names of vLLM's ``SamplingParams``, read and checked before anything runs.

Options come as JSON in the input ``sampling_parameters``, or as parameters of the request (what ``/generate`` makes of the
keys of its body that are no inputs). None is dropped in silence: an unknown one is refused by name, and so is one of
vLLM's that this engine does not have. All faults are told at once.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from brim.engine.engine import Sampling
from brim.engine.option_ranges import LONGEST_STOP, MOST_STOP_TOKENS, MOST_STOPS, RANGES, Range
from brim.errors import InputError

DRAWN_SEED_BITS = 63
ALL_TOKENS = -1
"""What vLLM's callers write for a ``top_k`` of all tokens; here that is 0."""
LONGEST_SHOWN = 60
"""Characters of a wrong value that an error repeats."""

_NOT_HERE = frozenset(
    {
        "allowed_token_ids",
        "bad_words",
        "best_of",
        "detokenize",
        "early_stopping",
        "guided_decoding",
        "guided_json",
        "guided_regex",
        "include_stop_str_in_output",
        "length_penalty",
        "logit_bias",
        "logits_processors",
        "logprobs",
        "lora_name",
        "min_tokens_to_keep",
        "output_kind",
        "prompt_logprobs",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "structured_outputs",
        "truncate_prompt_tokens",
        "use_beam_search",
    }
)
"""Options of vLLM that would change the text, and that the engine does not have."""
_WORD = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?")


def read_options(text: bytes | None, parameters: Mapping[str, Any], *, vocabulary: int) -> Sampling:
    """The options of one request.

    Args:
        text: the input ``sampling_parameters``: a JSON object; None or empty where there is none.
        parameters: the request's own parameters. An option may stand in one place only.
        vocabulary: tokens are 0..vocabulary - 1.

    Raises:
        InputError: not JSON, an unknown option, or a value outside its range; all of them in one message.
    """
    given = _object(text) if text else {}
    twice = sorted(set(given) & set(parameters))
    faults = [f"{_shown(name)} is given twice, in sampling_parameters and as a parameter" for name in twice]
    reader = _Reader({**parameters, **given}, faults)
    sampling = reader.sampling(vocabulary)
    if faults:
        raise InputError("; ".join(faults), hint=f"options are {', '.join(sorted(reader.known))}")
    return sampling


def _object(text: bytes) -> dict[str, Any]:
    hint = 'sampling_parameters is a JSON object, such as {"temperature": 0, "max_tokens": 64}'
    try:
        found = json.loads(text.decode("utf-8"), parse_constant=float)
    except UnicodeDecodeError as error:
        raise InputError(f"sampling_parameters is not UTF-8 (byte {error.start})", hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"sampling_parameters is not JSON: {str(error)[:LONGEST_SHOWN]}", hint=hint) from error
    if not isinstance(found, dict):
        raise InputError(f"sampling_parameters is {_shown(found)}, expected a JSON object", hint=hint)
    return found


class _Reader:
    """Takes options one by one, and notes what is wrong with them."""

    def __init__(self, given: Mapping[str, Any], faults: list[str]) -> None:
        self._given, self._faults = given, faults
        self.known: set[str] = set()

    def sampling(self, vocabulary: int) -> Sampling:
        default = Sampling()
        top_k = replace(RANGES["top_k"], low=ALL_TOKENS, high=vocabulary)
        found = Sampling(
            max_tokens=self._whole("max_tokens", default.max_tokens),
            min_tokens=self._whole("min_tokens", default.min_tokens),
            temperature=self._number("temperature", default.temperature),
            top_p=self._number("top_p", default.top_p),
            top_k=max(0, self._whole("top_k", default.top_k, top_k)),
            min_p=self._number("min_p", default.min_p),
            repetition_penalty=self._number("repetition_penalty", default.repetition_penalty),
            presence_penalty=self._number("presence_penalty", default.presence_penalty),
            frequency_penalty=self._number("frequency_penalty", default.frequency_penalty),
            seed=self._whole("seed", secrets.randbits(DRAWN_SEED_BITS), may_be_null=True),
            ignore_eos=self._truth("ignore_eos", default.ignore_eos),
            stop_token_ids=self._tokens("stop_token_ids", vocabulary),
            stop=self._strings("stop"),
        )
        if found.min_tokens > found.max_tokens:
            self._faults.append(f"min_tokens ({found.min_tokens}) is above max_tokens ({found.max_tokens})")
        if self._whole("n", 1, RANGES["max_tokens"]) != 1:
            self._faults.append(f"n is {_shown(self._given['n'])}; one text a request is made: ask as often as needed")
        self._unknown()
        return found

    def _unknown(self) -> None:
        for name in sorted(set(self._given) - self.known):
            if name in _NOT_HERE:
                self._faults.append(f"{name} is not supported by this engine")
                continue
            close = get_close_matches(name[:LONGEST_SHOWN], self.known, n=1)
            meant = f"; did you mean {close[0]}?" if close else ""
            self._faults.append(f"unknown option {_shown(name)}{meant}")

    def _take(self, name: str, default: Any) -> Any:
        self.known.add(name)
        return self._given.get(name, default)

    def _wrong(self, name: str, value: object, expected: str) -> None:
        self._faults.append(f"{name} is {_shown(value)}, expected {expected}")

    def _number(self, name: str, default: float) -> float:
        value = _number_of(self._take(name, default))
        if value is None or not RANGES[name].holds(value):
            self._wrong(name, self._given.get(name), str(RANGES[name]))
            return default
        return value

    def _whole(self, name: str, default: int, range_: Range | None = None, *, may_be_null: bool = False) -> int:
        range_ = range_ or RANGES[name]
        given = self._take(name, default)
        if given is None and may_be_null:
            return default
        value = given if isinstance(given, int) and not isinstance(given, bool) else _whole_of(given)
        if value is None or not range_.holds(value):
            self._wrong(name, given, str(range_))
            return default
        return value

    def _truth(self, name: str, default: bool) -> bool:
        given = self._take(name, default)
        if not isinstance(given, bool):
            self._wrong(name, given, "true or false")
            return default
        return given

    def _tokens(self, name: str, vocabulary: int) -> tuple[int, ...]:
        def fits(item: object) -> bool:
            return isinstance(item, int) and not isinstance(item, bool) and 0 <= item < vocabulary

        return self._list(name, MOST_STOP_TOKENS, fits, f"tokens from 0 to {vocabulary - 1}")

    def _strings(self, name: str) -> tuple[str, ...]:
        def fits(item: object) -> bool:
            return isinstance(item, str) and 1 <= len(item) <= LONGEST_STOP

        return self._list(name, MOST_STOPS, fits, f"strings of 1 to {LONGEST_STOP} characters")

    def _list(self, name: str, most: int, fits: Callable[[object], bool], what: str) -> tuple[Any, ...]:
        given = self._take(name, None)
        if given is None:
            return ()
        items = given if isinstance(given, list) else [given]
        wrong = [item for item in items[:most] if not fits(item)]
        if len(items) > most:
            self._faults.append(f"{name} has {len(items)} entries, at most {most} are taken")
        elif wrong:
            self._wrong(name, wrong[0], f"one or a list of {what}")
        else:
            return tuple(dict.fromkeys(items))
        return ()


def _number_of(value: object) -> float | None:
    """A finite number, also one that a transport has carried as text."""
    if isinstance(value, str) and len(value) <= LONGEST_SHOWN and _WORD.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _whole_of(value: object) -> int | None:
    if isinstance(value, str) and len(value) <= LONGEST_SHOWN and re.fullmatch(r"[+-]?\d+", value):
        return int(value)
    number = _number_of(value)
    return int(number) if number is not None and number.is_integer() else None


def _shown(value: object) -> str:
    text = (
        repr(value)
        if not isinstance(value, int) or isinstance(value, bool)
        else hex(value)
        if value.bit_length() > 128
        else str(value)
    )
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."

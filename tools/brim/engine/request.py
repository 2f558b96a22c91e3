"""A caller's request, read and checked before anybody else is touched by it.

Names and defaults are those of Triton's vLLM backend: a stream leaves the prompt out of its answer, a single answer begins
with it unless ``exclude_input_in_output`` is true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from brim.engine.engine import EngineLimits
from brim.engine.lifecycle import Request
from brim.engine.sampling import read_options
from brim.engine.settings import Settings
from brim.engine.validation import request_findings
from brim.errors import InputError

CLASS_PARAMETER = "brim_class"
"""Parameter of a request that names its class of callers."""
CANARY_PARAMETER = "brim_canary"
"""Parameter, true, of a request that asks whether texts go on; a refusal for want of room is no answer to that."""
BEGIN_PARAMETER = "brim_begin"
"""Parameter, true, of a request that wants an empty response at once: until then Triton does not see an HTTP caller leave."""
TIMEOUT_PARAMETER, PRIORITY_PARAMETER = "timeout", "priority"
"""KServe's, the former in microseconds. Triton takes them out of a gRPC request and leaves them in one over HTTP."""
LONGEST_TIMEOUT_US, LARGEST_PRIORITY = 86_400_000_000, 2**32 - 1
_LONGEST_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a caller wants to be told, and how.

    Attributes:
        stream: pieces as they come, or one answer at the end.
        prefix: what a single answer begins with: the prompt, or nothing.
        finish_reason: with each piece, why the text ended; ``None`` while it goes on.
        input_tokens: with each piece, how many the prompt has.
        output_tokens: with each piece, how many are behind it.
        canary: only whether texts go on.
        begin: an empty response ahead of the first.
    """

    stream: bool = False
    prefix: str = ""
    finish_reason: bool = False
    input_tokens: bool = False
    output_tokens: bool = False
    canary: bool = False
    begin: bool = False


class RequestReader:
    """Reads requests of one model."""

    def __init__(
        self,
        settings: Settings,
        limits: EngineLimits,
        tokens_of: Callable[[str, int], list[int]],
        longest_token_bytes: int,
    ) -> None:
        """Take what the limits come from.

        Args:
            settings: classes of callers and their deadlines.
            limits: the engine's.
            tokens_of: the tokenizer: text and the most tokens that are wanted of it -> tokens.
            longest_token_bytes: no token stands for more; bounds what is tokenised at all.
        """
        self._settings, self._limits, self._tokens_of = settings, limits, tokens_of
        self._longest_bytes = limits.context_tokens * longest_token_bytes
        self._hint = f"a prompt and its text may have {limits.context_tokens} tokens together (context_tokens of the service file)"

    def read(
        self,
        tensors: Mapping[str, Any],
        parameters: Mapping[str, Any],
        *,
        request_id: str,
        now_us: int,
        timeout_us: int,
    ) -> tuple[Request, Wanted]:
        """One request and what its caller wants.

        Args:
            tensors: first element of each input that came, by name: bytes or a bool.
            parameters: the request's own, those that Triton has taken left out.
            request_id: unlike that of any other living request.
            now_us: on the scheduler's clock.
            timeout_us: after which the caller has no use for the answer; 0 where it says nothing.

        Raises:
            InputError: what is wrong with it, for its caller's eyes.
        """
        named = dict(parameters)
        priority = self._priority(named.pop(CLASS_PARAMETER, None), named.pop(PRIORITY_PARAMETER, None))
        stream = bool(tensors.get("stream", False))
        kind, useful_us = self._settings.class_of(priority, stream=stream)
        own_us = _whole(TIMEOUT_PARAMETER, named.pop(TIMEOUT_PARAMETER, None), LONGEST_TIMEOUT_US)
        useful_us = timeout_us or own_us or useful_us
        canary, begin = (named.pop(name, False) is True for name in (CANARY_PARAMETER, BEGIN_PARAMETER))
        exclude = bool(tensors.get("exclude_input_in_output", stream))
        if stream and not exclude:
            raise InputError(
                "exclude_input_in_output is false, and a stream holds the new text alone",
                hint="leave exclude_input_in_output out, or set stream to false",
            )
        sampling = read_options(tensors.get("sampling_parameters"), named, vocabulary=self._limits.vocabulary)
        if "text_input" not in tensors:
            # Triton counts optional inputs, too, so it lets a request pass that has enough of those.
            raise InputError("text_input is missing", hint="send the prompt as the input text_input")
        text, tokens = self._prompt(tensors["text_input"])
        wanted = Wanted(
            stream=stream,
            prefix="" if exclude else text,
            finish_reason=bool(tensors.get("return_finish_reason", False)),
            input_tokens=bool(tensors.get("return_num_input_tokens", False)),
            output_tokens=bool(tensors.get("return_num_output_tokens", False)),
            canary=canary,
            begin=begin,
        )
        deadline_us = None if useful_us is None else now_us + useful_us
        request = Request(request_id, tokens, sampling, kind, deadline_us)
        found = request_findings(request, self._limits)
        if found:
            raise InputError("; ".join(one.message for one in found), hint=self._hint)
        return request, wanted

    def _priority(self, name: Any, given: Any) -> int:
        if name is None:
            return _whole(PRIORITY_PARAMETER, given, LARGEST_PRIORITY)
        for one in self._settings.classes:
            if one.name == name:
                return one.priority
        known = ", ".join(one.name for one in self._settings.classes) or "none"
        raise InputError(
            f"{CLASS_PARAMETER} is {repr(name)[:_LONGEST_SHOWN]}; this model's classes: {known}",
            hint=f"leave {CLASS_PARAMETER} out for the first class",
        )

    def _prompt(self, given: bytes) -> tuple[str, tuple[int, ...]]:
        if len(given) > self._longest_bytes:
            raise InputError(
                f"text_input has {len(given)} bytes, which {self._limits.context_tokens} tokens cannot hold",
                hint=self._hint,
            )
        try:
            text = given.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"text_input is not UTF-8 (byte {error.start})", hint="send the prompt as UTF-8"
            ) from error
        most = self._limits.context_tokens
        tokens = tuple(self._tokens_of(text, most + 1))
        if len(tokens) > most:
            raise InputError(f"the prompt has more than {most} tokens", hint=self._hint)
        return text, tokens


def _whole(name: str, given: Any, most: int) -> int:
    """A number of KServe's; 0 where none is given."""
    if given is None:
        return 0
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= most:
        raise InputError(
            f"{name} is {repr(given)[:_LONGEST_SHOWN]}, expected a whole number from 0 to {most}",
            hint="0, or none, for what the caller's class has; timeout is in microseconds",
        )
    return given

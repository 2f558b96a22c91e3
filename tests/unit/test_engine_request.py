"""A caller's request: defaults as the vLLM backend has them, classes and deadlines, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brim.adapter_parameter import PARAMETER
from brim.engine.engine import EngineLimits
from brim.engine.lifecycle import Request, RequestClass
from brim.engine.request import RequestReader, Wanted
from brim.engine.settings import Settings, read_settings
from brim.errors import InputError

LIMITS = EngineLimits(total_blocks=8, block_tokens=32, step_tokens=64, context_tokens=64, vocabulary=256)
CLASSES = [{"name": "interactive", "priority": 2}, {"name": "batch", "priority": 5, "deadline_ms": 9_000}]
SETTINGS = Settings.model_validate({"classes": CLASSES, "gives_up_ms": 3_000})


def read(text: bytes = b"hello", timeout_us: int = 0, parameters: Any = None, **tensors: Any) -> tuple[Request, Wanted]:
    reader = RequestReader(SETTINGS, LIMITS, lambda prompt, most: list(prompt.encode())[:most], 4)
    given = {"text_input": text, **tensors}
    return reader.read(given, parameters or {}, request_id="1", now_us=1_000, timeout_us=timeout_us)


def test_a_single_answer_begins_with_the_prompt_and_a_stream_does_not() -> None:
    assert read()[1] == Wanted(prefix="hello")
    assert read(stream=True)[1] == Wanted(stream=True)
    assert read(exclude_input_in_output=True)[1] == Wanted()
    with pytest.raises(InputError, match="exclude_input_in_output is false"):
        read(stream=True, exclude_input_in_output=False)


def test_what_is_to_be_told_is_told() -> None:
    wanted = read(return_finish_reason=True, return_num_input_tokens=True, return_num_output_tokens=True)[1]
    assert (wanted.finish_reason, wanted.input_tokens, wanted.output_tokens) == (True, True, True)


def test_classes_and_deadlines() -> None:
    def asked(**more: Any) -> tuple[RequestClass, int | None]:
        request, _ = read(**more)
        return request.kind, request.deadline_us

    assert asked() == (RequestClass.INTERACTIVE, 1_000 + 3_000_000)
    assert asked(parameters={"brim_class": "batch"}) == (RequestClass.BATCH, 1_000 + 9_000_000)
    assert asked(timeout_us=500, parameters={"brim_class": "interactive"}) == (RequestClass.INTERACTIVE, 1_500)
    assert asked(stream=True) == (RequestClass.INTERACTIVE, None)
    assert asked(stream=True, parameters={"brim_class": "batch"}) == (RequestClass.BATCH, 1_000 + 9_000_000)
    assert asked(stream=True, timeout_us=500) == (RequestClass.INTERACTIVE, 1_500)
    assert asked(parameters={"timeout": 700, "priority": 5}) == (RequestClass.BATCH, 1_700)
    assert asked(parameters={"timeout": 0, "priority": 0}) == asked()
    with pytest.raises(InputError, match=r"brim_class is 'vip'; this model's classes: interactive, batch"):
        read(parameters={"brim_class": "vip"})
    assert Settings().class_of(7) == (RequestClass.INTERACTIVE, None)


def test_options_come_from_both_places() -> None:
    sampling = read(sampling_parameters=b'{"max_tokens": 3}', parameters={"seed": 4})[0].sampling
    assert (sampling.max_tokens, sampling.seed) == (3, 4)


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        (b"", {}, "the prompt has no tokens"),
        (b"caf\xc3", {}, r"text_input is not UTF-8 \(byte 3\)"),
        (b"x" * 257, {}, "text_input has 257 bytes, which 64 tokens cannot hold"),
        (b"x" * 65, {}, "the prompt has more than 64 tokens"),
        (b"x" * 60, {}, "the prompt has 60 tokens and max_tokens is 16; the model takes 64 together"),
        (b"x", {"sampling_parameters": b'{"max_tokens": 64}'}, "max_tokens is 64"),
        (b"x", {"parameters": {"tempratur": 1}}, "did you mean temperature"),
    ],
)
def test_what_cannot_be_served_is_refused(text: bytes, more: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(text, **more)


def test_a_request_without_a_prompt_is_refused() -> None:
    reader = RequestReader(SETTINGS, LIMITS, lambda prompt, most: [], 4)
    with pytest.raises(InputError, match="text_input is missing"):
        reader.read({"stream": True}, {}, request_id="1", now_us=1_000, timeout_us=0)


def test_settings_are_read_from_the_configuration_and_faults_listed() -> None:
    def config(**values: Any) -> dict[str, Any]:
        return {"name": "m", "parameters": {PARAMETER: {"string_value": json.dumps(values)}}}

    assert read_settings({"name": "m"}) == Settings()
    found = read_settings(config(max_sequences=3, max_waiting=7))
    assert (found.policy.max_sequences, found.policy.max_waiting, found.policy.max_waiting_batch) == (3, 7, 3)
    with pytest.raises(InputError, match=r"kv_blocks: .*; typo: "):
        read_settings(config(kv_blocks=0, typo=1))


@pytest.mark.parametrize("wrong", ["soon", 0.5, -1, True, 10**12])
@pytest.mark.parametrize("name", ["timeout", "priority"])
def test_a_time_or_a_priority_that_is_none_is_refused(name: str, wrong: object) -> None:
    with pytest.raises(InputError, match=f"{name} is .*, expected a whole number from 0 to"):
        read(parameters={name: wrong})


def test_what_a_gateway_asks_for_is_no_sampling_option() -> None:
    assert read(parameters={"brim_begin": True})[1].begin
    assert read(parameters={"brim_canary": True})[1].canary
    assert not read(parameters={"brim_canary": "true"})[1].canary

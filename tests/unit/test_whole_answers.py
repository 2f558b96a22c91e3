from __future__ import annotations

import pytest

from tests.conftest import Brim


@pytest.mark.parametrize(
    "arguments",
    [
        ("load", "text_generation"),
        ("load", "text_generation", "--url", "http://127.0.0.1:9"),
        ("soak", "text_generation", "--duration", "5"),
        ("sweep", "text_generation", "--rate", "2"),
    ],
)
def test_commands_that_count_whole_answers_name_the_one_for_a_language_model(
    brim: Brim, arguments: tuple[str, ...]
) -> None:
    done = brim(*arguments)
    assert (done.code, done.out) == (2, "")
    assert f"text_generation is a language model, whose texts come in pieces: `brim {arguments[0]}`" in done.err
    assert "hint: `brim measure text_generation`" in done.err

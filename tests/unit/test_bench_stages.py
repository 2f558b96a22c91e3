"""Each stage is charged its own time, and the stages of the adapter are the methods that it really calls."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from string import Template

import pytest

from brim.bench.bare import BARE_MODEL, TIMED_ADAPTER, add_variant, bare_model, read_config
from brim.bench.stages import ADAPTER_STAGES, FILE_NAME, REST, RUN, StageClock, us_per_request
from brim.errors import ModelFileError
from brim.service.load import load_service
from tests.unit.test_runtime_adapter import CallerRequest, config, doubler, load, rows


class Time:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def test_a_stage_inside_another_stops_its_clock() -> None:
    time = Time()
    clock = StageClock(time)
    for stage, spend_ns in (("outer", 10), ("inner", 100)):
        clock.enter(stage)
        time.now_ns += spend_ns
    clock.leave()
    time.now_ns += 5
    clock.next("after")
    time.now_ns += 7
    clock.leave()
    time.now_ns += 1_000
    clock.enter("outer")
    time.now_ns += 1
    clock.leave()
    assert clock.spent_ns == {"outer": 16, "inner": 100, "after": 7}


def test_a_method_that_raises_is_charged_and_closed() -> None:
    time = Time()
    clock = StageClock(time)

    def fail() -> None:
        time.now_ns += 3
        raise KeyError("x")

    with pytest.raises(KeyError):
        clock.timed(fail, "failing")()
    clock.enter("next")
    time.now_ns += 4
    clock.leave()
    assert clock.spent_ns == {"failing": 3, "next": 4}


def test_what_was_found_is_read_back_a_request(tmp_path: Path) -> None:
    clock = StageClock(Time())
    clock.spent_ns = {"a": 8_000, "b": 500}
    clock.count(3)
    clock.count(1)
    clock.save(tmp_path)
    assert us_per_request(tmp_path) == {"a": 2.0, "b": 0.125}
    assert json.loads((tmp_path / FILE_NAME).read_text())["batches"] == 2


def test_no_request_is_no_figure(tmp_path: Path) -> None:
    StageClock().save(tmp_path)
    assert us_per_request(tmp_path) == {}


def test_every_stage_of_the_adapter_is_one_that_a_batch_goes_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _, owner, name in ADAPTER_STAGES:
        monkeypatch.setattr(owner, name, getattr(owner, name))
    calls: dict[str, int] = {}

    class Counting(StageClock):
        def enter(self, stage: str) -> None:
            calls[stage] = calls.get(stage, 0) + 1
            super().enter(stage)

    clock = Counting()
    clock.wrap(ADAPTER_STAGES)
    doubler(tmp_path / "1" / "model.onnx")
    model = load(tmp_path, config())
    responses = model.execute([CallerRequest(X=rows(value)) for value in (1, 2, 3)])
    assert [response.error for response in responses] == [None] * 3
    assert calls == {stage: 1 for stage, _, _ in ADAPTER_STAGES}
    assert clock.spent_ns[RUN] > 0 and clock.spent_ns[REST] > 0


def test_the_bare_model_is_the_same_code_with_and_without_its_clock(checkout: Path) -> None:
    service = load_service(checkout / "services" / "image_classifier.yaml")
    plain = bare_model(service, "x", "y", threads=1)
    timed = bare_model(service, "x", "y", threads=1, timed=True)
    assert "_clock" not in "".join(line for line in plain.splitlines() if "# timed" not in line)
    assert [line for line in timed.splitlines() if "_clock" not in line and "StageClock" not in line] == [
        line for line in plain.splitlines() if "# timed" not in line
    ]
    for text in (plain, timed, TIMED_ADAPTER):
        (made,) = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
        methods = {node.name for node in made.body if isinstance(node, ast.FunctionDef)}
        assert {"initialize", "execute"} <= methods
        assert ("finalize" in methods) is (text is not plain)
    assert {"input", "output", "graph_input", "graph_output", "threads"} == set(Template(BARE_MODEL).get_identifiers())


def test_a_variant_is_the_same_model_under_another_name(checkout: Path, tmp_path: Path) -> None:
    source = checkout / "model_repository" / "image_classifier"
    folder = add_variant(tmp_path, source, "other", "# empty\n")
    ours, theirs = read_config(folder / "config.pbtxt"), read_config(source / "config.pbtxt")
    assert (ours.name, len(ours.model_warmup)) == ("other", 0)
    ours.name = theirs.name
    del theirs.model_warmup[:]
    assert ours == theirs
    assert (folder / "1" / "model.py").read_text() == "# empty\n"
    assert not (folder / "configs").exists()


def test_a_configuration_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    for text in (None, "nonsense {"):
        if text:
            path.write_text(text)
        with pytest.raises(ModelFileError, match=r"config\.pbtxt"):
            read_config(path)

"""Results as files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from brim.errors import InputError
from brim.isolation.record import write_results
from brim.isolation.suite import Result, chosen

GOOD = Result("identity", True, 2, 2, 0, 0, 0, 0, 0, "", 1.5, False, 0.0, (), 2_500_000)
BAD = replace(GOOD, id="row_counts", ok=False, right=1, wrong=1, message="bad \x00 <text>", faults=("a", "b\x01"))
NEEDLESS = replace(GOOD, id="two_models", sent=0, right=0, skipped=True, message="nothing to check: one model")


def test_json_and_junit_say_the_same(tmp_path: Path) -> None:
    paths = write_results(tmp_path / "new" / "folder", {"model": "m", "ok": False}, [GOOD, BAD, NEEDLESS])
    document = json.loads(paths[0].read_text(encoding="utf-8"))
    assert [check["id"] for check in document["checks"]] == ["identity", "row_counts", "two_models"]
    assert document["checks"][1]["faults"] == ["a", "b\x01"]
    suite = ElementTree.parse(paths[1]).getroot()
    assert [suite.get(name) for name in ("tests", "failures", "skipped", "time")] == ["3", "1", "1", "7.500"]
    cases = {case.get("name"): case for case in suite}
    assert cases["identity"].find("failure") is None
    failure = cases["row_counts"].find("failure")
    assert failure is not None and failure.get("message") == "bad \ufffd <text>"
    assert cases["two_models"].find("skipped") is not None


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="cannot be written"):
        write_results(tmp_path / "file", {}, [GOOD])


def test_checks_are_chosen_by_id_in_the_order_of_the_suite() -> None:
    assert [check.id for check in chosen(["row_counts", "identity"])] == ["identity", "row_counts"]
    assert len(chosen([])) == 9
    with pytest.raises(InputError, match="nonsense"):
        chosen(["identity", "nonsense"])

"""Results as files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from brim.errors import InputError
from brim.isolation.bench import Account
from brim.isolation.checks import CHECKS, chosen
from brim.isolation.evidence import Company, Evidence
from brim.isolation.judge import Judgement, Verdict
from brim.isolation.record import write_results
from brim.isolation.result import Options, Result, totals
from brim.isolation.suite import result_of

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
    text = paths[2].read_text(encoding="utf-8")
    assert paths[2].name == "isolation.html" and "<html" in text and "row_counts" in text


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="cannot be written"):
        write_results(tmp_path / "file", {}, [GOOD])


def test_checks_are_chosen_by_id_in_the_order_of_the_suite() -> None:
    assert [check.id for check in chosen(["row_counts", "identity"])] == ["identity", "row_counts"]
    ids = [check.id for check in chosen([])]
    assert ids == [check.id for check in CHECKS] and len(set(ids)) == len(ids) == 16
    with pytest.raises(InputError, match="nonsense"):
        chosen(["identity", "nonsense"])


def test_totals_are_the_sums_of_all_checks() -> None:
    counts = totals([GOOD, BAD, NEEDLESS])
    assert counts == {
        "sent": 4, "right": 3, "own_error": 0, "cancelled": 0, "wrong": 1, "neighbour_errors": 0, "hung": 0
    }  # fmt: skip
    assert counts["sent"] == sum(counts[verdict.value] for verdict in Verdict)


def test_evidence_stands_in_the_json_as_objects(tmp_path: Path) -> None:
    seen = Evidence("identity-1", "http", "row 3", "Y", "Z", "wrong", "off", Company.BATCH, ("identity-2 (row 4)",), 1)
    paths = write_results(tmp_path, {"model": "m"}, [replace(BAD, exchanges=(seen,))])
    (check,) = json.loads(paths[0].read_text(encoding="utf-8"))["checks"]
    assert check["exchanges"] == [seen.as_json()]
    assert check["exchanges"][0]["company"] == "the same batch"


def account(*faults: str) -> Account:
    made = Account(repeat=("--fuzz-only", "http:3"))
    for fault in faults:
        made.tally.add(Judgement(Verdict.WRONG, fault), "request x-1")
    return made


def test_a_failure_says_what_and_how_to_repeat_it_and_a_note_is_no_failure() -> None:
    options = Options(repeat="brim isolate m --requests 9 --seed 7")
    failed = result_of("identity", account("bad"), options, 5)
    assert not failed.ok and failed.wrong == failed.sent == 1
    assert failed.message.startswith("1 of 1 requests were hurt | request x-1: bad")
    assert failed.message.endswith(f"; repeat with: {options.repeat} --check identity --fuzz-only http:3")
    troubled = result_of("identity", Account(troubles=["the server died"]), options, 5)
    assert not troubled.ok and troubled.message.startswith("the server died")
    passed = result_of("identity", Account(note="0.97 of it"), options, 5)
    assert passed.ok and passed.message == "0.97 of it" and not passed.skipped
    needless = result_of("identity", Account(skipped="one model"), options, 5)
    assert needless.ok and needless.skipped and needless.message == "nothing to check: one model"

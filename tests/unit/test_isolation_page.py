"""The page of a run: whole, right, and safe to open whatever a caller has sent."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from brim.isolation.checks import CHECKS
from brim.isolation.evidence import Company, Evidence
from brim.isolation.judge import Verdict
from brim.isolation.page import page, shown, verdict
from brim.isolation.result import Result

HOSTILE = "<script>alert(1)</script><img src=//elsewhere.example/x onerror=y>\"'&{{ 7 * 7 }}{% raw %}</details>"
EVIDENCE = Evidence(
    request_id="identity-17",
    protocol="grpc",
    sent="row 12",
    expected="Y float32 [1, 4]: 1.0, 2.0",
    came="[500] no",
    verdict="neighbour_errors",
    fault="answered alone, in company an error",
    company=Company.BATCH,
    neighbours=("identity-18 (row 3)", "identity-19 (NaN in X)"),
    neighbour_count=9,
    began_us=5,
    took_us=12_345,
)
FINE = replace(
    EVIDENCE,
    request_id="identity-1",
    fault="",
    verdict="right",
    company=Company.ALONE,
    neighbours=(),
    neighbour_count=0,
)
ABOUT: dict[str, Any] = {
    "model": "doubler",
    "ok": False,
    "requests": 2_000,
    "seed": 7,
    "took_us": 61_500_000,
    "command": "brim isolate doubler --seed 7",
    "versions": {"brim": "0.1.0", "server": "2.51.0"},
    "nothing": None,
    "totals": {"sent": 300},
}


def result(name: str, *, ok: bool = True, skipped: bool = False, **more: Any) -> Result:
    counts = {
        "right": 0 if skipped else 90,
        "own_error": 0 if skipped else 9,
        "cancelled": 0,
        "wrong": 0,
        "neighbour_errors": 0,
        "hung": 0,
    }
    counts.update({key: more.pop(key) for key in list(more) if key in counts})
    return Result(
        **{
            "id": name,
            "ok": ok,
            "sent": sum(counts.values()),
            **counts,
            "message": "",
            "mean_batch": 12.34,
            "skipped": skipped,
            "largest_deviation": 0.0,
            "faults": (),
            "took_us": 1_200_000,
            **more,
        }
    )


RESULTS = [
    result("identity", exchanges=(FINE,)),
    result("two_models", skipped=True, message="nothing to check: no other model", mean_batch=None),
    result(
        "fuzz",
        ok=False,
        wrong=2,
        hung=1,
        message="3 of 102 requests were hurt | first fault; repeat with: brim isolate doubler --seed 7 --check fuzz",
        faults=("first fault", "second fault"),
        exchanges=(FINE, EVIDENCE),
        figures={"last_released_us": 2_500_000, "plans": 3},
    ),
    result("row_counts"),
]


class Reader(HTMLParser):
    """Tags with their attributes, whether they nest, and the text."""

    VOID = frozenset(["meta", "br", "rect", "col"])

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.texts.append(data)
        if self.rows and self.rows[-1] and ("td" in self.open or "th" in self.open) and "title" not in self.open:
            self.rows[-1][-1] += data.strip()

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())


def test_the_document_nests_and_needs_nothing_from_elsewhere() -> None:
    text = page(ABOUT, RESULTS)
    assert text.startswith("<!doctype html>")
    read = Reader(text)
    tags = {tag for tag, _ in read.tags}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form", "video", "audio", "source"}
    for _, attributes in read.tags:
        assert not any(name.startswith("on") or name in ("src", "style", "srcset", "action") for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert "//" not in text and "@import" not in text and "url(" not in text
    assert "prefers-color-scheme: dark" in text and "@media print" in text


def test_every_anchor_leads_to_its_check() -> None:
    read = Reader(page(ABOUT, RESULTS))
    targets = [attributes["id"] for tag, attributes in read.tags if tag == "article"]
    assert len(set(targets)) == len(RESULTS)
    assert sorted(f"#{one}" for one in targets) == sorted(
        str(attributes["href"]) for tag, attributes in read.tags if tag == "a"
    )


def test_the_table_has_each_result_with_its_counts_and_failed_ones_first() -> None:
    rows = Reader(page(ABOUT, RESULTS)).rows
    table = rows[1 : 1 + len(RESULTS)]
    assert [row[0] for row in table] == ["fuzz", "identity", "row_counts", "two_models"]
    assert [row[1] for row in table] == ["failed", "ok", "ok", "skipped"]
    by_id = {one.id: one for one in RESULTS}
    for row in table:
        one = by_id[row[0]]
        assert row[3:10] == [str(one.sent), *(str(getattr(one, verdict.value)) for verdict in Verdict)]
        assert row[10:] == ["-" if one.mean_batch is None else "12.3", "1.2"]
    assert rows[0][3:] == [
        *("sent", "right", "own error", "cancelled", "wrong", "neighbour errors", "hung", "mean batch", "seconds")
    ]


@pytest.mark.parametrize(
    "counts",
    [
        {"right": 100_000, "wrong": 1, "own_error": 0},
        {"right": 0, "own_error": 0, "hung": 5},
        {"right": 1, "own_error": 1, "cancelled": 1, "wrong": 1, "neighbour_errors": 1, "hung": 1},
    ],
)
def test_a_bar_fills_its_width_and_shows_each_hurt_one(counts: dict[str, int]) -> None:
    read = Reader(page(ABOUT, [result("identity", ok=False, **counts)]))
    bars = [attributes for tag, attributes in read.tags if tag == "rect" and "x" in attributes]
    widths = {str(one["class"]): float(one["width"] or 0) for one in bars}
    assert sum(widths.values()) == pytest.approx(100, abs=0.1)
    assert widths["fill-hurt"] > 1.5
    hurt = sum(counts.get(name, 0) for name in ("wrong", "neighbour_errors", "hung"))
    if hurt == sum(counts.values()):
        assert list(widths) == ["fill-hurt"]


def test_a_failed_check_shows_fault_command_and_evidence() -> None:
    text = page(ABOUT, RESULTS)
    read = Reader(text)
    assert "<pre><code>brim isolate doubler --seed 7 --check fuzz</code></pre>" in text
    assert "repeat with" not in read.text
    assert read.text.count("first fault") == 1 and read.text.count("second fault") == 1
    opened = [attributes for tag, attributes in read.tags if tag == "details" and "open" in attributes]
    assert len(opened) == 1
    for words in (
        "identity-18 (row 3)",
        "identity-19 (NaN in X)",
        "9 the same batch",
        "12.3",
        "[500] no",
        "0 alone",
        "neighbour errors",
    ):
        assert words in read.text
    assert "last released2.50 s" in read.text
    # What was hurt comes before what was not, whatever the order of the evidence.
    assert text.index("identity-17") < text.rindex("identity-1<")


def test_the_conditions_are_all_there() -> None:
    text = Reader(page(ABOUT, RESULTS)).text
    for words in ("2000", "took61.50 s", "brim isolate doubler --seed 7", "brim 0.1.0, server 2.51.0", "nothing-"):
        assert words in text
    assert "totals" not in text


def test_the_verdict_is_one_sentence() -> None:
    assert verdict(RESULTS).startswith("Isolation is broken: 3 of ") and "fuzz" in verdict(RESULTS)
    assert "1 more had nothing to check" in verdict(RESULTS)
    fine = [result("identity"), result("row_counts")]
    assert verdict(fine).startswith("Nobody was hurt: 198 requests in 2 checks")
    assert verdict(fine[:1]).startswith("Nobody was hurt: 99 requests in 1 check,")
    assert verdict([]) == "No check was run."
    assert "broken" in verdict([result("caller_gone", ok=False, message="requests still wait")])


def hostile_everywhere(words: str) -> tuple[dict[str, Any], list[Result]]:
    evidence = Evidence(*([words] * 7), Company.BATCH, (words, words), 2)
    about = {"model": words, words: words, "versions": {words: [words]}}
    one = result(
        words,
        ok=False,
        message=f"{words}; repeat with: {words}",
        faults=(f"more {words}",),
        exchanges=(evidence,),
        figures={words: 1.5},
    )
    return about, [one, result(words, skipped=True, message=words)]


def test_whatever_a_caller_sends_stays_text() -> None:
    tame, hostile = (Reader(page(*hostile_everywhere(words))) for words in ("tame", HOSTILE))
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in tame.tags]
    assert [sorted(attributes) for _, attributes in hostile.tags] == [sorted(attributes) for _, attributes in tame.tags]
    assert hostile.text.count("{{ 7 * 7 }}") == tame.text.count("tame") > 10
    assert "49" not in hostile.text


@pytest.mark.parametrize("one", ["\x00", "\x1b", "\u202e", "\ud800", "\ufeff", "\x7f", "\uffff"])
def test_what_cannot_be_seen_is_shown_escaped(one: str) -> None:
    text = page(*hostile_everywhere(f"a{one}b"))
    text.encode("utf-8")
    assert one not in text
    assert "\\" in str(shown(one)) and shown("é漢\n") == "é漢\n"


def test_every_check_of_the_suite_has_its_title() -> None:
    text = Reader(page({"model": "m"}, [result(check.id) for check in CHECKS])).text
    assert all(check.title in text for check in CHECKS)


def test_the_same_run_gives_the_same_page() -> None:
    assert page(ABOUT, RESULTS) == page(dict(ABOUT), list(RESULTS))
    assert not re.search(r"0x[0-9a-f]{8}", page(ABOUT, RESULTS))

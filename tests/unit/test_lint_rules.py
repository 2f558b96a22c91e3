"""Every rule's own examples, and the page that is generated from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from brim.lint.check import RULES, lint_paths
from brim.lint.example import write_example
from brim.lint.page import GROUPS, page

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("code", RULES)
def test_rule_is_silent_on_its_good_example(code: str, tmp_path: Path) -> None:
    rule = RULES[code]
    found = lint_paths([write_example(rule.good, tmp_path)], release=rule.release)
    assert code not in {finding.code for finding in found}


@pytest.mark.parametrize("code", RULES)
def test_only_the_rule_fires_on_its_bad_example(code: str, tmp_path: Path) -> None:
    rule = RULES[code]
    found = lint_paths([write_example(rule.bad, tmp_path)], release=rule.release)
    assert {finding.code for finding in found} == {code}, [finding.render() for finding in found]
    assert all(finding.line > 0 and finding.column > 0 for finding in found), [finding.render() for finding in found]
    assert all(finding.message for finding in found)


def test_every_rule_belongs_to_a_group_of_the_page() -> None:
    assert [code for code in RULES if not code.startswith(tuple(GROUPS))] == []


def test_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "lint.md").read_text(encoding="utf-8") == page(), "run: python -m brim.lint.page"

"""Blocks, prefixes and metrics by themselves."""

from __future__ import annotations

import re
from itertools import pairwise
from random import Random
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.engine import metrics as m
from brim.engine.kv_cache import BlockLedger, PrefixIndex, block_hashes, blocks_for
from brim.engine.metrics import FAMILIES, MOST_PENDING, Histogram, Kind, Metrics


def test_blocks_are_rounded_up() -> None:
    assert [blocks_for(tokens, 16) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_a_ledger_never_promises_what_is_not_there() -> None:
    ledger = BlockLedger(10, 16)
    ledger.promise("a", 7)
    for owner, blocks in (("b", 4), ("a", 1), ("c", 0)):
        with pytest.raises(ValueError, match="blocks for"):
            ledger.promise(owner, blocks)
    ledger.promise("b", 3)
    assert (ledger.used_blocks, ledger.free_blocks, ledger.held("a"), ledger.held("x")) == (10, 0, 7, 0)
    ledger.release("a")
    assert ledger.free_blocks == 7
    with pytest.raises(KeyError):
        ledger.release("a")


@given(st.integers(0, 2**32).map(Random))
def test_hashes_agree_exactly_as_far_as_the_tokens_do(chance: Random) -> None:
    block = chance.choice([1, 3, 16])
    one = chance.choices(range(5), k=chance.randint(0, 60))
    other = [*one[: chance.randint(0, len(one))], *chance.choices(range(5), k=chance.randint(0, 20))]
    same = next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    agree = [a == b for a, b in zip(block_hashes(one, block), block_hashes(other, block), strict=False)]
    assert agree == [place < same // block for place in range(len(agree))]


def test_the_index_forgets_what_was_handed_out_least_recently_and_beginnings_first() -> None:
    index = PrefixIndex(4)
    index.touch([1, 2, 3])
    index.touch([1, 9])
    assert index.cached_blocks([1, 2, 3]) == 3
    index.touch([7])
    assert index.cached_blocks([1, 2, 3]) == 1
    assert index.cached_blocks([3]) == 1 and index.cached_blocks([8, 1]) == 0
    assert len(index) == 4
    nothing = PrefixIndex(0)
    nothing.touch([1])
    assert nothing.cached_blocks([1]) == 0


@given(st.lists(st.floats(0, 200, allow_nan=False), min_size=1), st.integers(1, 100))
def test_a_percentile_is_at_most_one_bucket_above_the_true_one(values: list[float], percent: int) -> None:
    histogram = Histogram(m.SECONDS)
    for value in values:
        histogram.observe(value)
    true = sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]
    found = histogram.percentile(percent)
    assert found is not None and found >= true
    below = [bound for bound in m.SECONDS if bound < found]
    assert not below or true > below[-1]


def test_buckets_are_close_enough_for_a_p99() -> None:
    bounds = m.SECONDS
    assert bounds[0] == 0.001 and bounds[-1] == 100
    assert max(b / a for a, b in pairwise(bounds)) <= 5 / 3


def test_every_metric_has_a_name_that_prometheus_takes_and_no_two_share_one() -> None:
    names = [(family.name, ()) for family in FAMILIES] + [alias for family in FAMILIES for alias in family.aliases]
    assert len(names) == len(set(names))
    for name, labels in names:
        assert re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", name)
        assert all(re.fullmatch(r"[a-z_]+", label) for label, _ in labels)
    assert all(bool(family.buckets) == (family.kind is Kind.HISTOGRAM) for family in FAMILIES)
    assert all(
        family.name.endswith("_total") == (family.kind is Kind.COUNTER)
        for family in FAMILIES
        if family is not m.BLOCKS_TOTAL
    )


def test_routers_find_what_they_look_for() -> None:
    found = {alias for family in FAMILIES for alias in family.aliases}
    for name in ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"):
        assert (name, ()) in found
    assert ("vllm:time_to_first_token_seconds", ()) in found
    for value in ("waiting", "scheduled"):
        assert ("nv_trt_llm_request_metrics", (("request_type", value),)) in found
    for value in ("fraction", "used", "max", "tokens_per"):
        assert ("nv_trt_llm_kv_cache_block_metrics", (("kv_cache_block_type", value),)) in found


def test_changes_are_told_once_and_a_gauge_that_stands_still_costs_nothing() -> None:
    metrics = Metrics()
    first = {(change.family, change.label): change.amount for change in metrics.changes()}
    assert first[m.REFUSALS, "room_full"] == 0 and first[m.STEPS, ""] == 0
    metrics.add(m.STEPS, 2)
    metrics.add(m.REFUSALS, label="shed")
    metrics.observe_us(m.ITL, 1500)
    metrics.observe_us(m.ITL, 2500)
    metrics.set({m.RUNNING: 3})
    moved = metrics.changes()
    assert {(c.family, c.label): c.amount for c in moved if c.family.kind is Kind.COUNTER} == {
        (m.STEPS, ""): 2,
        (m.REFUSALS, "shed"): 1,
    }
    assert [(c.family, c.observed) for c in moved if c.observed] == [(m.ITL, (0.0015, 0.0025))]
    assert [(c.family, c.amount) for c in moved if c.family.kind is Kind.GAUGE] == [(m.RUNNING, 3)]
    assert metrics.changes() == []
    metrics.set({m.RUNNING: 3, m.WAITING: 1})
    metrics.set({m.WAITING: 0})
    assert metrics.changes() == []
    metrics.set({m.RUNNING: 2})
    assert [(c.family, c.amount) for c in metrics.changes()] == [(m.RUNNING, 2)]


def test_what_nobody_publishes_is_bounded() -> None:
    metrics = Metrics()
    for _ in range(MOST_PENDING + 5):
        metrics.observe(m.STEP_TOKENS, 1)
    metrics.observe(m.STEP_TOKENS, 2)
    (change,) = [change for change in metrics.changes() if change.observed]
    assert len(change.observed) == MOST_PENDING and change.observed[-1] == 2
    assert metrics.count(m.STEP_TOKENS) == MOST_PENDING + 6
    assert metrics.percentile(m.TTFT, 99) is None


def test_unknown_labels_are_an_error() -> None:
    with pytest.raises(KeyError):
        Metrics().add(m.REFUSALS, label="because")


def test_nothing_is_lost_between_threads() -> None:
    metrics = Metrics()

    def count() -> None:
        for _ in range(2_000):
            metrics.add(m.TOKENS_OUT)
            metrics.observe(m.STEP_TOKENS, 1)

    threads = [Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    told = 0.0
    while any(thread.is_alive() for thread in threads):
        told += sum(change.amount for change in metrics.changes() if change.family is m.TOKENS_OUT)
    told += sum(change.amount for change in metrics.changes() if change.family is m.TOKENS_OUT)
    assert told == metrics.value(m.TOKENS_OUT) == metrics.count(m.STEP_TOKENS) == 8_000

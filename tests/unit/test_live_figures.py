"""Two looks as figures: what is known, what is not, and what a restart does to it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from brim.gateway.outcomes import Ended
from brim.live.ended import NONE_ENDED, Tally, between, parse_gateway
from brim.live.figures import Figures, Goodput
from brim.live.history import History
from brim.live.seen import SERVER_NAMES, Objectives, SeenServer, kept_lines
from tests.unit.live_example import duration_lines, ended_line, look, server, text_page, totals

SLO = {"net": Objectives(99, 50_000)}
TEXT_SLO = {"net": Objectives(99, 10_000_000, ttft_us=2_000_000, tpot_us=200_000)}


def seen_twice(before: SeenServer | str, after: SeenServer | str, **kwargs: Any) -> Figures:
    history = History(**kwargs)
    history.add(look(0, r1=before))
    return history.add(look(10, r1=after)).models["net"]


def test_a_first_look_has_no_rates() -> None:
    view = History(SLO).add(look(0, r1=server(0, totals(sizes={5: 2}))))
    net = view.models["net"]
    assert (net.rate_per_s, net.duty, net.mean_batch, net.goodput, net.wall_us) == (None, None, None, None, 0)
    assert net.batch_sizes == {} and net.versions == ("1",)


def test_figures_of_a_stretch() -> None:
    net = seen_twice(
        server(0, totals(sizes={1: 10}), instances=2),
        server(10, totals(sizes={1: 10, 50: 4, 100: 8}, queue_us=5_000_000, failed=3), instances=2),
    )
    assert (net.inferences, net.executions, net.requests, net.failed) == (1000, 12, 1000, 3)
    assert net.rate_per_s == 100.0
    assert net.mean_batch == pytest.approx(1000 / 12) and net.fill == pytest.approx(10 / 12)
    assert net.batch_sizes == {50: 4, 100: 8}
    assert net.queue_us == 5_000
    # 12 batches of 2 ms on two instances in 10 s.
    assert net.duty == pytest.approx(0.024 / 20)
    assert net.latency is None and net.goodput is None, "Triton has sums only"


def test_a_model_that_is_never_called_has_zeros_and_no_means() -> None:
    net = seen_twice(server(0, totals()), server(10, totals()), objectives=SLO)
    assert (net.rate_per_s, net.duty, net.inferences, net.executions) == (0.0, 0.0, 0, 0)
    assert (net.mean_batch, net.fill, net.queue_us, net.latency, net.goodput) == (None,) * 5


@pytest.mark.parametrize("sizes", [{}, {1: 3}, {2: 1}])
def test_after_a_restart_only_what_came_since_counts(sizes: dict[int, int]) -> None:
    net = seen_twice(server(0, totals(sizes={1: 50, 100: 7})), server(10, totals(sizes=sizes)))
    assert net.restarted and net.batch_sizes == sizes
    assert net.inferences == sum(size * count for size, count in sizes.items())
    assert net.rate_per_s is not None and net.rate_per_s >= 0 and (net.duty or 0) >= 0


def test_a_server_goes_and_comes_back() -> None:
    history = History()
    history.add(look(0, r1=server(0, totals(sizes={1: 5}))))
    assert history.add(look(2, r1=server(2, totals(sizes={1: 9})))).models["net"].inferences == 4
    gone = history.add(look(4, r1="no statistics: connection refused"))
    assert gone.models == {} and gone.servers[0].trouble == "no statistics: connection refused"
    back = history.add(look(6, r1=server(6, totals(sizes={1: 2}))))
    assert back.servers[0].trouble == "" and back.servers[0].restarted
    net = back.models["net"]
    assert net.inferences == 2 and net.restarted
    # What came since it was seen last, over all of that time.
    assert net.wall_us == 4_000_000 and net.rate_per_s == 0.5


def test_a_silence_without_a_restart_loses_nothing() -> None:
    history = History()
    history.add(look(0, r1=server(0, totals(sizes={1: 5}))))
    history.add(look(2, r1="no statistics: timed out"))
    net = history.add(look(4, r1=server(4, totals(sizes={1: 25})))).models["net"]
    assert net.inferences == 20 and net.rate_per_s == 5.0 and not net.restarted


def test_a_model_that_is_loaded_in_between_counts_from_zero() -> None:
    history = History()
    history.add(look(0, r1=server(0, totals("old", sizes={1: 1}))))
    net = history.add(look(10, r1=server(10, totals("old", sizes={1: 1}), totals(sizes={4: 5})))).models["net"]
    assert net.inferences == 20 and net.rate_per_s == 2.0 and not net.restarted


def test_statistics_of_another_form_are_a_silent_server() -> None:
    view = History().add(look(0, r1=server(0, {"name": "net", "batch_stats": [{}]}), r2=server(0, totals())))
    assert "another form" in view.servers[0].trouble and view.servers[1].trouble == ""
    assert list(view.models) == ["net"]


def test_two_replicas_of_one_model_add_up() -> None:
    history = History()
    history.add(look(0, r1=server(0, totals(), instances=2), r2=server(0, totals())))
    view = history.add(
        look(10, r1=server(10, totals(sizes={10: 10}), instances=2), r2=server(10, totals(sizes={1: 900})))
    )
    net, (one, other) = view.models["net"], view.by_server["net"]
    assert (one.server, other.server) == ("r1", "r2")
    assert net.wall_us == 10_000_000 and net.rate_per_s == 100.0
    assert (one.rate_per_s, other.rate_per_s) == (10.0, 90.0)
    assert net.mean_batch == pytest.approx(1000 / 910)
    # 910 batches of 2 ms in 10 s of three instances.
    assert net.duty == pytest.approx(1.82 / 30)


def test_two_versions_of_one_model_are_one_model() -> None:
    net = seen_twice(
        server(0, totals(sizes={1: 1}), totals(sizes={2: 1}, version="2")),
        server(10, totals(sizes={1: 2}), totals(sizes={2: 3}, version="2")),
    )
    assert net.versions == ("1", "2") and net.batch_sizes == {1: 1, 2: 2} and net.inferences == 5


def test_a_window_slides() -> None:
    history = History(window_us=10_000_000)
    for second in range(31):
        view = history.add(look(second, r1=server(second, totals(sizes={1: 100 * min(second, 15)}))))
    # From the 15th second on nothing was answered, and the window holds none of those before any more.
    assert view.models["net"].inferences == 0 and view.models["net"].wall_us == 10_000_000
    assert view.rates["net"][:15] == (100.0,) * 15 and view.rates["net"][15:] == (0.0,) * 15


def scraped(page: Path, at_s: float) -> SeenServer:
    """A server that says what a page of case 39 says."""
    lines = page.read_text(encoding="utf-8").splitlines()
    values = {
        (name, model): int(value)
        for name, model, value in re.findall(r'^(\w+)\{model="(\w)",version="1"\} (\d+)$', "\n".join(lines), re.M)
    }
    entries = []
    for model in sorted({model for _, model in values}):
        answered = values.get(("nv_inference_request_success", model), 0)
        entry = totals(model, sizes={1: answered} if answered else {})
        queue_ns = 1_000 * values.get(("nv_inference_queue_duration_us", model), 0)
        entry["inference_stats"]["queue"] = {"count": answered, "ns": queue_ns}
        entries.append(entry)
    return server(at_s, *entries, page=lines)


def test_mean_queue_time_is_not_diluted(cases: Path) -> None:
    """Case 39: 3,000,000 us over two requests, an idle model, and a restart."""
    history = History()
    history.add(look(0, r1=scraped(cases / "39_scrape_t0.prom", 0)))
    view = history.add(look(30, r1=scraped(cases / "39_scrape_t30.prom", 30)))
    assert view.models["a"].queue_us == 1_500_000
    assert view.models["b"].queue_us is None and view.models["b"].waiting == 0
    assert view.models["a"].waiting == 9
    after = history.add(look(60, r1=scraped(cases / "39_scrape_after_restart.prom", 60)))
    assert after.models["a"].restarted and after.models["a"].queue_us == 250_000
    assert (after.models["a"].rate_per_s or 0) >= 0


def test_without_a_metrics_page_nobody_says_who_waits() -> None:
    net = seen_twice(server(0, totals(), page=None), server(10, totals(sizes={1: 5}), page=None))
    assert net.waiting is None and net.failures is None and net.rate_per_s == 0.5
    came = seen_twice(
        server(0, totals(), page=None),
        server(10, totals(), page=['nv_inference_pending_request_count{model="net",version="1"} 3']),
    )
    assert came.waiting == 3 and came.failures is None, "since when they failed is not known"


def test_failures_by_reason_begin_anew_with_the_server() -> None:
    line = 'nv_inference_request_failure{{model="net",reason="REJECTED",version="1"}} {}'
    net = seen_twice(server(0, totals(), page=[line.format(5)]), server(10, totals(), page=[line.format(7)]))
    assert net.failures == {"REJECTED": 2}
    anew = seen_twice(server(0, totals(), page=[line.format(5)]), server(10, totals(), page=[line.format(1)]))
    assert anew.failures == {"REJECTED": 1}


def at_gateway(*after: str, before: list[str] | None = None, objectives: Any = SLO) -> Figures:
    history = History(objectives)
    history.add(look(0, before or [], r1=server(0, totals())))
    return history.add(look(10, after, r1=server(10, totals()))).models["net"]


def test_percentiles_and_share_in_the_slo_are_the_gateways() -> None:
    net = at_gateway(
        ended_line(90),
        ended_line(10, code="429", reason="queue_full", flags="UO"),
        *duration_lines({10: 60, 50: 88, 100: 90}),
        *duration_lines({0.5: 10}, code="429"),
    )
    assert net.latency is not None and net.latency.source == "gateway" and net.latency.answers == 90
    assert (net.latency.p50_us, net.latency.p99_us) == (10_000, 100_000)
    assert net.goodput == Goodput("gateway", 0.88, 0.88), "refused requests were not answered in time"
    assert net.gateway is not None and net.gateway.offered_per_s == 10.0
    assert net.gateway.reasons == {"queue_full": 10} == net.refusals


def test_a_share_whose_bound_is_not_the_slo_is_a_range() -> None:
    lines = duration_lines({25: 50, 100: 90, 250: 100})
    assert at_gateway(*lines).goodput == Goodput("gateway", 0.5, 0.9)
    assert at_gateway(*lines, objectives={}).goodput is None
    beyond = at_gateway(*duration_lines({1: 3, 2: 4}), objectives={"net": Objectives(99, 500)}).goodput
    assert beyond == Goodput("gateway", 0.0, 0.75)


def test_whose_caller_left_or_erred_does_not_count_against_the_service() -> None:
    net = at_gateway(
        *duration_lines({1: 8}),
        *duration_lines({1: 5}, code="400"),
        *duration_lines({1: 7}, code="0"),
        *duration_lines({1: 2}, grpc="8"),
    )
    assert net.goodput == Goodput("gateway", 0.8, 0.8)
    assert net.latency is not None and net.latency.answers == 8, "a refusal over gRPC has code 200 and is no answer"


def test_a_gateway_that_began_anew_gives_no_negative_counts() -> None:
    before = [ended_line(100), *duration_lines({1: 100})]
    net = at_gateway(ended_line(3), *duration_lines({1: 3}), before=before)
    assert net.gateway is not None and net.gateway.outcomes["right"] == 3
    assert net.latency is not None and net.latency.answers == 3


def test_a_gateway_that_does_not_answer_leaves_the_rest() -> None:
    history = History(SLO)
    history.add(look(0, [ended_line(1)], r1=server(0, totals())))
    history.add(look(2, [ended_line(5)], r1=server(2, totals())))
    view = history.add(look(4, "no page: connection refused", r1=server(4, totals(sizes={1: 8}))))
    assert view.gateway is not None and view.gateway.trouble
    assert view.models["net"].gateway is None and view.models["net"].inferences == 8


@pytest.mark.parametrize(
    ("labels", "outcome"),
    [
        ({}, Ended.RIGHT),
        ({"grpc": "0"}, Ended.RIGHT),
        ({"grpc": "8", "reason": "queue_full"}, Ended.REFUSED),
        ({"code": "429", "reason": "shed"}, Ended.REFUSED),
        ({"code": "504", "reason": "deadline_unreachable"}, Ended.REFUSED),
        ({"code": "504", "reason": "deadline"}, Ended.EXPIRED),
        ({"grpc": "4"}, Ended.EXPIRED),
        ({"code": "503", "reason": "unavailable"}, Ended.FAILED),
        ({"code": "503", "reason": "draining"}, Ended.REFUSED),
        ({"code": "500"}, Ended.FAILED),
        ({"grpc": "13"}, Ended.FAILED),
        ({"code": "400", "reason": "bad_request"}, Ended.OWN_ERROR),
        ({"grpc": "3"}, Ended.OWN_ERROR),
        ({"code": "0", "flags": "DC"}, Ended.CANCELLED),
        ({"code": "200", "flags": "DR"}, Ended.CANCELLED),
        ({"code": "200", "reason": "expired"}, Ended.EXPIRED),
        ({"code": "200", "reason": "failed"}, Ended.FAILED),
    ],
)
def test_what_a_request_came_to(labels: dict[str, str], outcome: Ended) -> None:
    ended, _ = parse_gateway([ended_line(4, name="batch", **labels)])
    assert ended["net"].of(outcome) == 4
    assert {key[0] for key in ended["net"].counts} == {"batch"}


def test_requests_of_streams_count_once() -> None:
    def line(outcome: str, count: int) -> str:
        return f'envoy_brim_stream_requests{{model="net",class="",outcome="{outcome}"}} {count}'

    made = {"answered": 5, "failed": 1, "left": 2, "host_room_full": 3, "queue_full": 4, "bad_request": 6}
    ended, _ = parse_gateway([line("admitted", 11), *(line(*one) for one in made.items())])
    found = {outcome: ended["net"].of(outcome) for outcome in Ended}
    assert found == {
        Ended.RIGHT: 5,
        Ended.FAILED: 1,
        Ended.CANCELLED: 2,
        Ended.REFUSED: 7,
        Ended.OWN_ERROR: 6,
        Ended.EXPIRED: 0,
    }


def test_in_flight_is_by_model_and_other_lines_are_passed_over() -> None:
    ended, in_flight = parse_gateway(
        [
            "# TYPE envoy_brim_requests counter",
            'envoy_cluster_upstream_rq_active{envoy_cluster_name="triton/net"} 7',
            'envoy_cluster_upstream_rq_active{envoy_cluster_name="around"} 9',
            ended_line(3, model=""),
            "no line of metrics",
        ]
    )
    assert ended == {} and in_flight == {"net": 7}


def test_nothing_ended_is_nothing() -> None:
    assert between(NONE_ENDED, NONE_ENDED) == Tally({}, {}, 0)
    assert NONE_ENDED.in_time(50_000) == (0, 0) and NONE_ENDED.latencies.percentile_us(99) is None


def test_a_language_model_has_its_own_figures() -> None:
    before = text_page(
        tokens=100,
        ends={"stop": 5, "length": 1, "cancelled": 0, "refused": 0},
        ttft={1: 4, 2: 6, 3: 6},
        tpot={0.1: 6, 0.2: 6, 0.3: 6},
    )
    after = text_page(
        tokens=1_100,
        ends={"stop": 10, "length": 4, "cancelled": 3, "refused": 2},
        ttft={1: 9, 2: 15, 3: 16},
        tpot={0.1: 10, 0.2: 13, 0.3: 14},
        kv=0.75,
        running=8,
        waiting=2,
    )
    net = seen_twice(
        server(0, totals(), page=before), server(10, totals(sizes={1: 8}), page=after), objectives=TEXT_SLO
    )
    assert net.text is not None and net.text.tokens_per_s == 100.0 and net.text.kv_usage == 0.75
    assert (net.text.running, net.waiting) == (8, 2)
    assert net.rate_per_s == 0.8, "texts that came to their end"
    assert net.text.ends == {"stop": 5, "length": 3, "cancelled": 3, "refused": 2}
    assert net.text.ttft is not None and (net.text.ttft.p50_us, net.text.ttft.p99_us) == (1_000_000, 3_000_000)
    # 9 of 10 first tokens and 7 of 8 paces in time; 8 of 10 that did not leave were answered.
    assert net.goodput is not None and net.goodput.source == "model"
    assert net.goodput.low == pytest.approx((0.9 + 7 / 8 - 1) * 0.8) and net.goodput.high == pytest.approx(7 / 8 * 0.8)
    assert (net.mean_batch, net.fill, net.batch_sizes) == (None, None, {}), "it batches anew before every step"


def test_a_language_models_restart_gives_no_negative_figure() -> None:
    before = text_page(tokens=5_000, ends={"stop": 50}, ttft={1: 50})
    after = text_page(tokens=20, ends={"stop": 1}, ttft={1: 1})
    net = seen_twice(server(0, totals(), page=before), server(10, totals(), page=after), objectives=TEXT_SLO)
    assert net.restarted and net.text is not None and net.text.tokens_per_s == 2.0
    assert net.text.ends == {"stop": 1}


def test_a_page_that_comes_late_makes_no_leap() -> None:
    page = text_page(tokens=5_000, ends={"stop": 50}, ttft={1: 50})
    net = seen_twice(server(0, totals(), page=None), server(10, totals(), page=page))
    assert net.text is not None and net.text.tokens_per_s is None and net.text.ends == {}


def test_what_is_no_number_is_not_there_and_what_is_no_page_is_said() -> None:
    page = text_page(running=3, kv=0.5)
    spoilt = kept_lines(
        "\n".join([*page, *(line.rpartition(" ")[0] + " NaN" for line in page), "vllm:x{} 1"]), SERVER_NAMES
    )
    assert set(spoilt) == {line for line in page if not line.startswith("vllm:")}
    wrong = ['brim_llm_request_latency_seconds_bucket{model="net",le="high"} 1']
    view = History().add(
        look(
            0,
            ['envoy_brim_request_duration_bucket{model="net",code="200",le="high"} 1'],
            r1=server(0, totals(), page=wrong),
        )
    )
    assert "another form" in view.servers[0].trouble
    assert view.gateway is not None and "another form" in view.gateway.trouble


def test_a_restart_that_only_a_histogram_tells_is_one() -> None:
    """No count fell, but four more first tokens within a second and none within two cannot be."""
    before = text_page(tokens=5, ends={"stop": 4}, ttft={1: 2, 2: 6})
    after = text_page(tokens=9, ends={"stop": 6}, ttft={1: 6, 2: 6})
    net = seen_twice(server(0, totals(), page=before), server(10, totals(), page=after), objectives=TEXT_SLO)
    assert net.restarted and net.text is not None
    assert net.text.ttft is not None and net.text.ttft.answers == 6 and net.text.tokens_per_s == 0.9

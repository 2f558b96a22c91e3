"""Reading and writing config.pbtxt: verdicts, places, hints, round trips."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInstanceGroup

from brim.config.places import NOWHERE
from brim.config.textformat import MAX_FINDINGS, Parsed, parse, write
from brim.findings import Severity, has_errors

CASES = Path(__file__).parents[1] / "cases"
BATTERY = [json.loads(line) for line in (CASES / "08_syntax_battery.jsonl").read_text(encoding="utf-8").splitlines()]
REJECTED = {
    "a": ("CFG005", 1, 75),
    "b": ("CFG006", 1, 20),
    "d": ("CFG005", 1, 51),
    "g": ("CFG010", 1, 17),
    "h": ("CFG011", 1, 19),
    "j": ("CFG013", 1, 30),
    "k": ("CFG008", 1, 30),
    "l": ("CFG009", 1, 30),
    "m": ("CFG003", 1, 7),
    "n": ("CFG002", 1, 1),
    "o": ("CFG004", 1, 11),
    "q": ("CFG007", 1, 1),
}


def errors(parsed: Parsed) -> list[tuple[str, int, int]]:
    return [(f.code, f.line, f.column) for f in parsed.findings if f.severity is Severity.ERROR]


@pytest.mark.parametrize("case", BATTERY, ids=lambda case: case["id"])
def test_syntax_battery(case: dict[str, object]) -> None:
    parsed = parse(str(case["text"]), "config.pbtxt")
    expected = [REJECTED[str(case["id"])]] if not case["ok"] else []
    assert errors(parsed) == expected
    assert all(finding.file == "config.pbtxt" for finding in parsed.findings)


@pytest.mark.parametrize("case", [case for case in BATTERY if case.get("check")], ids=lambda case: case["id"])
def test_accepted_text_means_what_the_battery_says(case: dict[str, dict[str, object]]) -> None:
    message = parse(str(case["text"]), "f").message
    assert message is not None
    said: dict[str, object] = {"max_batch_size": message.max_batch_size, "inputs": len(message.input)}
    if message.input:
        said |= {"data_type": DataType.Name(message.input[0].data_type), "dims": list(message.input[0].dims)}
    if message.instance_group:
        said["kind"] = ModelInstanceGroup.Kind.Name(message.instance_group[0].kind)
    assert {name: said[name] for name in case["check"]} == case["check"]


@pytest.mark.parametrize(
    ("text", "code", "place", "said"),
    [
        ("name: ''\nmax_batch_size: 0144", "CFG014", (2, 17), "100, not 144"),
        ("max_batchsize: 100", "CFG007", (1, 1), "did you mean max_batch_size?"),
        ("default_queue_policy { max_queue_size: 8 }", "CFG007", (1, 1), "belongs inside dynamic_batching"),
        ("dynamic_batching { 2, 4, 8 }", "CFG006", (1, 20), "preferred_batch_size: [ 2, 4, 8 ]"),
        ('input { name: "x" data_type: BYTES }', "CFG009", (1, 30), "TYPE_STRING"),
        ("input { data_type: fp32 }", "CFG009", (1, 20), "TYPE_FP32"),
        ("instance_group { kind: GPU }", "CFG009", (1, 24), "KIND_GPU"),
        ("max_batch_size: +8", "CFG010", (1, 17), "+8"),
        ("max_batch_size: 1_000", "CFG010", (1, 17), "1_000"),
        ("max_batch_size: 0b1", "CFG010", (1, 17), "0b1"),
        ("max_batch_size: 2147483648", "CFG010", (1, 17), "-2147483648..2147483647"),
        ("dynamic_batching { max_queue_delay_microseconds: -1 }", "CFG010", (1, 50), "-1"),
        ("response_cache { enable: yes }", "CFG010", (1, 26), "true or false"),
        ("name: m", "CFG010", (1, 7), 'name: "m"'),
        ("max_batch_size: [ 8 ]", "CFG010", (1, 17), "one value"),
        ("max_batch_size { }", "CFG020", (1, 16), "colon"),
        ('name "m"', "CFG020", (1, 6), "colon"),
        ("dynamic_batching: 5", "CFG010", (1, 19), "block"),
        ("name: 'a\\z'", "CFG019", (1, 9), "\\z"),
        ("name: 'a\n", "CFG019", (1, 7), "not closed"),
        ("name: 'a\0b'", "CFG019", (1, 7), "NUL"),
        ("name:\u00a0'a'", "CFG003", (1, 6), "U+00A0"),
        ("dynamic_batching { } sequence_batching { }", "CFG012", (1, 22), "dynamic_batching"),
        ("dynamic_batching {\n", "CFG017", (1, 18), "never closed"),
        ("name: 'a' }", "CFG017", (1, 11), "closes nothing"),
        ("dynamic_batching < }", "CFG017", (1, 20), "closed with"),
        ("input [ { dims: [ 1 } ]", "CFG017", (1, 17), "never closed"),
        ("input [ { } { } ]", "CFG005", (1, 13), "comma missing"),
        ("# nothing", "CFG016", (1, 1), "no field"),
        ("name: 'a' /* b */", "CFG004", (1, 11), "/*"),
        ("name: 'a', , backend: 'b'", "CFG005", (1, 12), "','"),
        ("name: 'a' $", "CFG021", (1, 11), "$"),
        ("name: '\\ud83d'", "CFG021", (1, 7), "surrogate"),
    ],
)
def test_fault_has_code_place_and_words(text: str, code: str, place: tuple[int, int], said: str) -> None:
    found = {(f.code, f.line, f.column): f"{f.message} {f.hint}" for f in parse(text, "f").findings}
    assert (code, *place) in found
    assert said in found[(code, *place)]


def test_both_schedulers_are_named() -> None:
    finding = parse("dynamic_batching { } sequence_batching { }", "f").findings[0]
    assert "dynamic_batching" in finding.message and "sequence_batching" in finding.message


def test_independent_faults_are_all_reported() -> None:
    text = "name: 'a'\nmax_batchsize: 8\ninput { data_type: FP32 dims: [ 1, ] }\ninstance_group { count: 1.5 }\n"
    assert errors(parse(text, "f")) == [("CFG007", 2, 1), ("CFG009", 3, 20), ("CFG005", 3, 34), ("CFG010", 4, 25)]


def test_bytes_that_are_not_utf8_are_placed() -> None:
    assert errors(parse(b"name: 'a'\n# caf\xe9\n", "f")) == [("CFG001", 2, 6)]
    assert "UTF-16" in parse("name: 'a'".encode("utf-16"), "f").findings[0].message


@pytest.mark.parametrize("text", ["[" * 200_000, "x { " * 100_000, "input { dims: [" * 50_000, "\x00" * 100_000])
def test_damaged_text_is_read_in_bounds(text: str) -> None:
    parsed = parse(text, "f")
    assert parsed.message is None
    assert has_errors(parsed.findings)
    assert len(parsed.findings) <= MAX_FINDINGS


def test_too_large_a_text_is_not_read() -> None:
    assert errors(parse("#" * 5_000_000, "f")) == [("CFG018", 1, 1)]


def test_positions_name_elements_entries_and_fields() -> None:
    text = (
        "dynamic_batching {\n  preferred_batch_size: [ 50, 100 ]\n}\ninput { dims: 3 dims: [ 4, 5 ] }\n"
        'parameters [ { key: "a\\"b" value { string_value: "1" } } ]\n'
        "dynamic_batching_ : 1\n"
    )
    where = parse(text, "f").positions
    assert where["dynamic_batching"] == (1, 1)
    assert where["dynamic_batching.preferred_batch_size[1]"] == (2, 31)
    assert [where[f"input[0].dims[{index}]"] for index in range(3)] == [(4, 9), (4, 25), (4, 28)]
    assert where['parameters["a\\"b"]'] == (5, 14)
    assert where['parameters["a\\"b"].string_value'] == (5, 36)
    assert where.nearest("dynamic_batching.default_queue_policy.max_queue_size") == (1, 1)
    assert where.nearest('parameters["zz"].string_value') == (5, 1)
    assert where.nearest("output[0].dims") == NOWHERE


def test_last_of_two_map_entries_has_the_positions() -> None:
    parsed = parse('parameters { key: "a" value { string_value: "1" } }\nparameters { key: "a" value { } }\n', "f")
    assert [(f.code, f.severity, f.line) for f in parsed.findings] == [("CFG015", Severity.WARNING, 2)]
    assert parsed.positions['parameters["a"]'] == (2, 1)
    assert 'parameters["a"].string_value' not in parsed.positions


@pytest.mark.parametrize("value", ["inf", "-inf", "Infinity", "-infinity", "nan"])
def test_decimal_numbers_need_not_be_finite(value: str) -> None:
    parsed = parse(f"model_metrics {{ metric_control {{ histogram_options {{ buckets: {value} }} }} }}", "f")
    assert not parsed.findings
    assert parsed.message is not None
    assert parse(write(parsed.message), "f").findings == parsed.findings


def test_a_sign_stands_directly_before_what_is_infinite() -> None:
    text = "model_metrics { metric_control { histogram_options { buckets: - inf } } }"
    assert errors(parse(text, "f"))[0] == ("CFG010", 1, 63)
    assert errors(parse("max_batch_size: -inf", "f")) == [("CFG010", 1, 17)]


def test_64_bit_values_stay_exact() -> None:
    text = (CASES / "07_uint64_priorities.pbtxt").read_text(encoding="utf-8")
    parsed = parse(text, "f")
    assert parsed.message is not None and parsed.findings == []
    batching = parse(write(parsed.message), "f").message
    assert batching == parsed.message
    assert parsed.message.dynamic_batching.priority_levels == 2**64 - 1
    assert parsed.message.dynamic_batching.default_priority_level == 2**53 + 1
    policy = parsed.message.dynamic_batching.priority_queue_policy[2**53 + 1]
    assert (policy.default_timeout_microseconds, policy.max_queue_size) == (2**64 - 1, 2**32 - 1)
    assert parsed.positions["dynamic_batching.priority_queue_policy[9007199254740993].max_queue_size"] == (10, 110)


def test_kitchen_sink_is_kept() -> None:
    parsed = parse((CASES / "15_kitchen_sink.pbtxt").read_bytes(), "f")
    message = parsed.message
    assert message is not None and not has_errors(parsed.findings)
    assert parse(write(message), "f").message == message
    assert message.name == "everything"
    assert message.HasField("dynamic_batching")
    assert message.input[1].HasField("reshape") and message.output[1].HasField("reshape")
    assert message.parameters["dup"].string_value == "2"
    assert [(f.code, f.line, f.column) for f in parsed.findings] == [("CFG015", 18, 86)]
    decoded = json.loads(message.parameters["ENGINE_ARGS"].string_value)
    assert decoded == {"model": "a/b", "note": 'tab\tquote"', "p": "é"}


def test_written_text_is_stable_and_readable() -> None:
    one, other = ModelConfig(name="é"), ModelConfig(name="é")
    for config, keys in ((one, "ba"), (other, "ab")):
        for key in keys:
            config.parameters[key].string_value = key
        config.dynamic_batching.preferred_batch_size.extend([50, 100])
    assert write(one) == write(other)
    assert 'name: "é"\n' in write(one)
    assert "preferred_batch_size: [50, 100]" in write(one)
    assert write(one).index('"a"') < write(one).index('"b"')


@pytest.mark.parametrize("digits", ["9" * 5_000, "0x" + "f" * 5_000, "0" + "7" * 5_000, "-" + "9" * 5_000])
@pytest.mark.parametrize("field", ["max_batch_size", "input { data_type"])
def test_integer_of_thousands_of_digits_is_a_finding(field: str, digits: str) -> None:
    text = f"{field}: {digits}" + (" }" if "{" in field else "")
    found = parse(text, "f").findings
    assert [finding.line for finding in found if finding.severity is Severity.ERROR]


def test_leading_zeros_do_not_make_a_number_large() -> None:
    parsed = parse("max_batch_size: " + "0" * 5_000 + "144", "f")
    assert parsed.message is not None and parsed.message.max_batch_size == 100

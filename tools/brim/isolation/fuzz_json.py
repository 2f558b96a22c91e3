"""What an HTTP request says, broken on purpose: keys, values, lists, shapes, data, parameters, and the syntax itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from brim.isolation.fuzz_bytes import DEEP, LONG_TEXT, WHOLE_NUMBERS, mutated, nested, odd_text, odd_value
from brim.isolation.fuzz_draft import HttpDraft, HttpKind, Stage

DATATYPES = (
    "BOOL",
    "UINT8",
    "INT32",
    "INT64",
    "FP16",
    "BF16",
    "FP32",
    "FP64",
    "BYTES",
    "FP33",
    "fp32",
    "TYPE_FP32",
    "",
)
PARAMETERS = (
    *("binary_data_output", "sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers"),
    *("binary_data", "binary_data_size", "classification", "shared_memory_region", "shared_memory_byte_size"),
    *("shared_memory_offset", "triton_enable_empty_final_response", "triton_x", "no_such_parameter", ""),
)
MANY = 1_000


def _inputs(draft: HttpDraft) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = draft.document["inputs"]
    return found


def _first(draft: HttpDraft, draw: Random) -> dict[str, Any]:
    return draw.choice(_inputs(draft))


def _places(node: Any, found: list[tuple[Any, Any]], deep: int = 0) -> list[tuple[Any, Any]]:
    """Every container of a document with a key or index of it; only the first few values of ``data``."""
    keys = list(node) if isinstance(node, dict) else range(min(len(node), 6)) if isinstance(node, list) else ()
    for key in keys:
        found.append((node, key))
        if deep < 8:
            _places(node[key], found, deep + 1)
    return found


def _value_odd(draft: HttpDraft, draw: Random) -> None:
    node, key = draw.choice(_places(draft.document, []))
    node[key] = odd_value(draw)


def _key_gone(draft: HttpDraft, draw: Random) -> None:
    node, key = draw.choice([place for place in _places(draft.document, []) if isinstance(place[0], dict)])
    del node[key]


def _key_renamed(draft: HttpDraft, draw: Random) -> None:
    node, key = draw.choice([place for place in _places(draft.document, []) if isinstance(place[0], dict)])
    value = node.pop(key)
    node[draw.choice((key.upper(), key + " ", key[:-1], odd_text(draw)))] = value


def _key_more(draft: HttpDraft, draw: Random) -> None:
    nodes = [draft.document, *_inputs(draft)]
    draw.choice(nodes)[draw.choice(("outputs", "raw", "model_name", "x", odd_text(draw)))] = odd_value(draw)


def _list_changed(draft: HttpDraft, draw: Random) -> None:
    inputs = _inputs(draft)
    chosen = draw.choice(("twice", "gone", "many", "turned"))
    if chosen == "twice":
        inputs.append(draw.choice(inputs))
    elif chosen == "gone":
        inputs.pop()
    elif chosen == "many":
        inputs += [{"name": f"X{number}", "datatype": "FP32", "shape": [1], "data": [1]} for number in range(MANY // 2)]
    else:
        inputs.reverse()
        draw.choice(inputs)["name"] = inputs[0]["name"]


def _nested(draft: HttpDraft, draw: Random) -> None:
    node, key = draw.choice(_places(draft.document, []))
    if draw.random() < 0.5:
        node[key] = nested(draw, node[key])
        return
    opening = b"[" if draw.random() < 0.7 else b'{"a":'
    closing = b"]" if opening == b"[" else b"}"
    count = draw.randint(500, DEEP)
    node[key] = "NESTED"
    text = json.dumps(draft.document).encode()
    shut = draw.choice((count, count, count - 1, 0))
    draft.document = text.replace(b'"NESTED"', opening * count + b"1" + closing * shut)


def _name(draft: HttpDraft, draw: Random) -> None:
    one = _first(draft, draw)
    one["name"] = draw.choice((odd_text(draw), one["name"].lower() + "x", "x" * LONG_TEXT))


def _id(draft: HttpDraft, draw: Random) -> None:
    draft.document["id"] = draw.choice((odd_text(draw), odd_value(draw), "i" * LONG_TEXT))


def _datatype(draft: HttpDraft, draw: Random) -> None:
    _first(draft, draw)["datatype"] = draw.choice(DATATYPES)


def _shape(draft: HttpDraft, draw: Random) -> None:
    one = _first(draft, draw)
    one["shape"] = odd_shape(one["shape"], draw)


def odd_shape(shape: list[int], draw: Random) -> list[Any]:
    """Another shape than the right one: sizes changed, more or fewer of them, in another order, of another kind."""
    changed: list[Any] = list(shape) or [1]
    at = draw.randrange(len(changed))
    makers: tuple[Callable[[], Any], ...] = (
        lambda: changed.__setitem__(at, draw.choice(WHOLE_NUMBERS)),
        lambda: changed.__setitem__(at, changed[at] + draw.choice((-1, 1))),
        lambda: changed.__setitem__(0, draw.choice((0, 2, 3, 100, 101, 1_000, 1 << 20))),
        lambda: changed.insert(at, draw.choice((0, 1, 2))),
        lambda: changed.pop(at),
        lambda: changed.extend([1] * draw.choice((1, 8, MANY))),
        changed.clear,
        changed.reverse,
        lambda: changed.__setitem__(at, -changed[at]),
    )
    draw.choice(makers)()
    return changed


def _shape_kind(draft: HttpDraft, draw: Random) -> None:
    one = _first(draft, draw)
    one["shape"] = draw.choice(
        (odd_value(draw), [float(size) for size in one["shape"]], [str(s) for s in one["shape"]])
    )


def _data(draft: HttpDraft, draw: Random) -> None:
    one = _first(draft, draw)
    data = one.get("data")
    if not isinstance(data, list) or not data:
        one["data"] = [1] * draw.randint(0, 100)
        return
    at = draw.randrange(len(data))
    makers: tuple[Callable[[], Any], ...] = (
        lambda: data[:-1],
        lambda: [*data, data[0]],
        lambda: [data],
        lambda: [[value] for value in data],
        lambda: [*data[:at], odd_value(draw), *data[at + 1 :]],
        lambda: [odd_value(draw) for _ in range(min(len(data), 20))],
        lambda: [draw.choice((1e39, -1e39, 1e-46, float("nan"), -0.0))] * len(data),
        lambda: [str(value) for value in data],
        lambda: [bool(value) for value in data],
        list,
        lambda: {str(number): value for number, value in enumerate(data)},
    )
    one["data"] = draw.choice(makers)()


def _parameters(draft: HttpDraft, draw: Random) -> None:
    node = draw.choice([draft.document, *_inputs(draft)])
    known = node.setdefault("parameters", {})
    for _ in range(draw.choice((1, 1, 2, 50))):
        known[draw.choice(PARAMETERS)] = odd_value(draw)


def _outputs(draft: HttpDraft, draw: Random) -> None:
    def one() -> dict[str, Any]:
        name = draw.choice((*draft.outputs, *draft.outputs, odd_text(draw)))
        return {"name": name, "parameters": {draw.choice(PARAMETERS): draw.choice((True, 1, "x", odd_value(draw)))}}

    makers: tuple[Callable[[], Any], ...] = (
        lambda: [one()],
        lambda: [one(), one()],
        lambda: [one()] * 2,
        lambda: [{"name": name} for name in draft.outputs] * draw.choice((1, 2, 100)),
        lambda: [{"name": f"O{number}"} for number in range(MANY)],
        lambda: [{}],
        lambda: odd_value(draw),
    )
    draft.document["outputs"] = draw.choice(makers)()


def _binary_size(draft: HttpDraft, draw: Random) -> None:
    one = _first(draft, draw)
    parameters = one.setdefault("parameters", {})
    right = parameters.get("binary_data_size", 0)
    parameters["binary_data_size"] = draw.choice(
        (right - 1, right + 1, -right, right * 2, 0, str(right), odd_value(draw))
    )


def _binary_part(draft: HttpDraft, draw: Random) -> None:
    draft.binary = mutated(draft.binary, draw)


def _key_twice(draft: HttpDraft, draw: Random) -> None:
    key = draw.choice(("inputs", "id", "parameters", "outputs"))
    text = json.dumps(draft.document)
    draft.document = ("{" + json.dumps(key) + ": " + json.dumps(odd_value(draw)) + ", " + text[1:]).encode()


def _syntax(draft: HttpDraft, draw: Random) -> None:
    text = json.dumps(draft.document)
    makers: tuple[Callable[[], bytes], ...] = (
        lambda: (text[:-1] + ",}").encode(),
        lambda: text.replace('"', "'").encode(),
        lambda: ("// x\n" + text).encode(),
        lambda: ("\ufeff" + text).encode(),
        lambda: text.encode("utf-16"),
        lambda: text.encode("utf-32-be"),
        lambda: text.replace(": ", ": 0", 3).encode(),
        lambda: text.replace(": ", "=").encode(),
        lambda: (text + "\x00" * 40).encode(),
        lambda: text.replace('"', '"\x01', 2).encode(),
        lambda: text.replace('"', "", 1).encode(),
        lambda: (text + text).encode(),
        lambda: b"",
        lambda: draw.choice((b"null", b"[]", b"1", b'"x"', b"{}", b"{", b"-", b'"', b"1e999999", b"\xef\xbb\xbf")),
    )
    draft.document = draw.choice(makers)()


def _not_utf8(draft: HttpDraft, draw: Random) -> None:
    draft.document["id"] = "MARK"
    wrong = draw.choice(
        (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf8\x88\x80\x80\x80", b"\\ud800", b"\\udc00x")
    )
    draft.document = json.dumps(draft.document).encode().replace(b"MARK", wrong * draw.randint(1, 5))


def _written_otherwise(draft: HttpDraft, draw: Random) -> None:
    document = dict(sorted(draft.document.items(), key=lambda item: draw.random()))
    text = json.dumps(document, indent=draw.choice((None, 1, 8)), separators=draw.choice((None, (",", ":"))))
    draft.document = text.replace('"shape"', draw.choice(('"shape"', '"\\u0073hape"'))).encode()


def _rows_more(draft: HttpDraft, draw: Random) -> None:
    """A few equal rows in one request, right in every way, or one input with another count."""
    count = draw.randint(2, 4)
    for one in _inputs(draft) if draw.random() < 0.6 else [_first(draft, draw)]:
        if one["shape"]:
            one["shape"] = [one["shape"][0] * count, *one["shape"][1:]]
        if "data" in one:
            one["data"] = one["data"] * count
        else:
            one["parameters"]["binary_data_size"] *= count
    draft.binary = b"".join(tensor.data * count for tensor in draft.tensors) if draft.binary else b""


JSON_KINDS = (
    HttpKind("value_odd", Stage.JSON, _value_odd),
    HttpKind("key_gone", Stage.JSON, _key_gone),
    HttpKind("key_renamed", Stage.JSON, _key_renamed),
    HttpKind("key_more", Stage.JSON, _key_more),
    HttpKind("list_changed", Stage.JSON, _list_changed),
    HttpKind("name", Stage.JSON, _name),
    HttpKind("id", Stage.JSON, _id),
    HttpKind("datatype", Stage.JSON, _datatype),
    HttpKind("shape", Stage.JSON, _shape),
    HttpKind("shape_kind", Stage.JSON, _shape_kind),
    HttpKind("data", Stage.JSON, _data),
    HttpKind("parameters", Stage.JSON, _parameters),
    HttpKind("outputs", Stage.JSON, _outputs),
    HttpKind("binary_size", Stage.JSON, _binary_size),
    HttpKind("binary_part", Stage.JSON, _binary_part),
    HttpKind("rows_more", Stage.JSON, _rows_more),
    HttpKind("nested", Stage.JSON, _nested),
    HttpKind("key_twice", Stage.JSON, _key_twice),
    HttpKind("syntax", Stage.JSON, _syntax),
    HttpKind("not_utf8", Stage.JSON, _not_utf8),
    HttpKind("written_otherwise", Stage.JSON, _written_otherwise, keeps=True),
)

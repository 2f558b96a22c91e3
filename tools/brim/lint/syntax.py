"""CFG001 to CFG021: what the text reader found (``brim.config.faults``), one rule a kind of fault."""

from __future__ import annotations

from collections.abc import Iterator

from brim.config import faults
from brim.findings import Severity
from brim.lint.rule import HEAD, Check, Example, Fault, rule
from brim.lint.subject import Model

PROTOBUF = "protobuf text format; the parser inside tritonserver 2.51.0 (24.10) refuses it"


CODES: list[str] = []
"""The rules that need no message: what can be said of a text that protobuf refuses."""


def _found(code: str) -> Check:
    def check(model: Model) -> Iterator[Fault]:
        for finding in model.parsed.findings:
            if finding.code == code:
                yield Fault(
                    finding.message,
                    hint=finding.hint,
                    severity=finding.severity,
                    file=model.file,
                    line=finding.line,
                    column=finding.column,
                )

    return check


def _syntax(
    code: str,
    title: str,
    why: str,
    good: Example,
    bad: Example,
    severity: Severity = Severity.ERROR,
    source: str = PROTOBUF,
) -> None:
    CODES.append(code)
    rule(code, severity, title, why=why, source=source, good=good, bad=bad)(_found(code))


_PLAIN = HEAD.replace("100", "8")

_syntax(
    faults.NOT_UTF8,
    "The file is not UTF-8.",
    "Python's protobuf refuses the file, and every client that reads the configuration back gets broken strings.",
    _PLAIN + "# caf\u00e9\n",
    {"m.pbtxt": "# caf\udce9\n" + _PLAIN},
    source="protobuf: string fields are UTF-8; tritonserver 24.10 itself lets the bytes pass (measured)",
)
_syntax(
    faults.BYTE_ORDER_MARK,
    "The file starts with a byte order mark.",
    "The mark is invisible in most editors, and the parser's own message does not name it.",
    _PLAIN,
    "\ufeff" + _PLAIN,
)
_syntax(
    faults.LOOKALIKE,
    "A character only looks like the right one: typographic quotes, a no-break space, a long dash.",
    "Text copied from a web page or a chat carries them; they cannot be seen.",
    _PLAIN,
    _PLAIN.replace('"m"', "\u201cm\u201d"),
)
_syntax(
    faults.WRONG_COMMENT,
    "A comment starts with // or /*.",
    "Only # starts a comment.",
    _PLAIN + "# one GPU\n",
    _PLAIN + "// one GPU\n",
)
_syntax(
    faults.COMMA,
    "A comma or semicolon stands where none belongs, or is missing between list elements.",
    "Fields may end with one comma, and so may the last field of a block; the last element of a list may not.",
    _PLAIN + "dynamic_batching { preferred_batch_size: [ 8 ], }\n",
    _PLAIN + "dynamic_batching { preferred_batch_size: [ 8, ] }\n",
)
_syntax(
    faults.NO_FIELD_NAME,
    "A value stands without a field name.",
    "Every value belongs to a named field.",
    _PLAIN + "dynamic_batching { preferred_batch_size: [ 8 ] }\n",
    _PLAIN + "dynamic_batching { 8 }\n",
)
_syntax(
    faults.UNKNOWN_FIELD,
    "The block has no such field.",
    "Triton refuses the whole file for one misspelt name.",
    _PLAIN,
    _PLAIN.replace("max_batch_size", "max_batchsize"),
)
_syntax(
    faults.QUOTED_ENUM,
    "An enum value is quoted.",
    "Enum values are bare words.",
    _PLAIN + 'input { name: "x" data_type: TYPE_FP32 dims: 4 }\n',
    _PLAIN + 'input { name: "x" data_type: "TYPE_FP32" dims: 4 }\n',
)
_syntax(
    faults.ENUM_NAME,
    "The enum has no such value.",
    "The protocol says FP32 and BYTES where the configuration says TYPE_FP32 and TYPE_STRING.",
    _PLAIN + 'input { name: "x" data_type: TYPE_FP32 dims: 4 }\n',
    _PLAIN + 'input { name: "x" data_type: FP32 dims: 4 }\n',
)
_syntax(
    faults.WRONG_VALUE,
    "The value does not fit its field.",
    "Whole numbers take no fraction, exponent, plus sign or underscore, strings need quotes, and unsigned fields no minus.",
    _PLAIN,
    _PLAIN.replace("8", "8.0"),
)
_syntax(
    faults.GIVEN_TWICE,
    "A field that holds one value is given twice.",
    "One of the two is not what its writer thinks.",
    _PLAIN,
    _PLAIN + "max_batch_size: 16\n",
)
_syntax(
    faults.ONEOF_TWICE,
    "Two fields that exclude each other are both given.",
    "A model has one scheduler, one version policy, one kind of warm-up data; a merge of two files can leave both.",
    _PLAIN + "dynamic_batching { }\n",
    _PLAIN + "dynamic_batching { }\nsequence_batching { }\n",
)
_syntax(
    faults.ENUM_NUMBER,
    "An enum is given by a number that it does not have.",
    "The parser lets it pass, and nothing can be done with such a type.",
    _PLAIN + 'input { name: "x" data_type: 11 dims: 4 }\n',
    _PLAIN + 'input { name: "x" data_type: 99 dims: 4 }\n',
    source="common `model_config.proto`; tritonserver 24.10 loads the model all the same (measured)",
)
_syntax(
    faults.OCTAL,
    "A number with a leading zero is octal.",
    "0144 is 100.",
    _PLAIN,
    _PLAIN.replace("8", "010"),
    Severity.WARNING,
    "protobuf text format",
)
_syntax(
    faults.DUPLICATE_KEY,
    "A map has the same key twice.",
    "The last entry wins without a word.",
    _PLAIN + 'parameters { key: "a" value { string_value: "1" } }\n',
    _PLAIN + 'parameters [ { key: "a" value { string_value: "1" } }, { key: "a" value { string_value: "2" } } ]\n',
    Severity.WARNING,
    "protobuf text format",
)
_syntax(
    faults.EMPTY,
    "The file holds no field.",
    "Triton would take every setting from the model file, batching off included.",
    _PLAIN,
    "# nothing yet\n",
    source="core `model_config_utils.cc`, AutoCompleteBackendFields",
)
_syntax(
    faults.UNBALANCED,
    "A bracket has no partner.",
    "The block ends somewhere else than its writer thinks.",
    _PLAIN + "dynamic_batching { }\n",
    _PLAIN + "dynamic_batching {\n",
)
_syntax(
    faults.TOO_DEEP,
    "Blocks are nested deeper than any configuration needs, or the file is too large.",
    "The file is damaged, or no configuration.",
    _PLAIN,
    'name: "m"\nbackend: "python"\nnested ' + "{ a " * 70 + "}" * 70 + "\n",
)
_syntax(
    faults.BAD_STRING,
    "A string is not closed, or holds an escape or character that protobuf does not take.",
    "A Windows path needs its backslashes doubled.",
    _PLAIN + r'default_model_filename: "c:\\zeta"' + "\n",
    _PLAIN + r'default_model_filename: "c:\zeta"' + "\n",
)
_syntax(
    faults.NO_COLON,
    "The colon between a field and its value is missing.",
    "Only blocks go without.",
    _PLAIN,
    _PLAIN.replace("size:", "size"),
)
_syntax(
    faults.UNEXPECTED,
    "Anything else that protobuf refuses.",
    "The place and the words are protobuf's own.",
    _PLAIN,
    _PLAIN + "$\n",
)

"""The results as files: JSON, JUnit XML, which continuous integration shows as tests, and a page for people."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from brim.errors import InputError
from brim.isolation.page import page
from brim.isolation.result import Result
from brim.units import US_PER_S

JSON_NAME = "isolation.json"
JUNIT_NAME = "isolation.xml"
PAGE_NAME = "isolation.html"
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_results(folder: Path, about: Mapping[str, object], results: Sequence[Result]) -> list[Path]:
    """Write the three files; their paths. ``about`` stands in front in the JSON.

    Raises:
        InputError: the folder cannot be written.
    """
    document = {**about, "checks": [result.as_json() for result in results]}
    texts = {
        JSON_NAME: json.dumps(document, indent=2) + "\n",
        JUNIT_NAME: junit(str(about.get("model", "")), results),
        PAGE_NAME: page(about, results),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"{error.filename}: {error.strerror}: the results cannot be written", hint="--out wants a folder"
        ) from error
    return [folder / name for name in texts]


def junit(model: str, results: Sequence[Result]) -> str:
    """One test case a check; a failed one holds its message, a needless one is skipped."""
    suite = ElementTree.Element(
        "testsuite",
        name=f"brim isolate {model}",
        tests=str(len(results)),
        failures=str(sum(not result.ok for result in results)),
        errors="0",
        skipped=str(sum(result.skipped for result in results)),
        time=f"{sum(result.took_us for result in results) / US_PER_S:.3f}",
    )
    for result in results:
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"isolation.{model}", name=result.id, time=f"{result.took_us / US_PER_S:.3f}"
        )
        # Servers put bytes into their texts that XML cannot carry.
        message = _NOT_XML.sub("\ufffd", result.message)
        if not result.ok:
            ElementTree.SubElement(case, "failure", message=message).text = _NOT_XML.sub(
                "\ufffd", "\n".join(result.faults)
            )
        elif result.skipped:
            ElementTree.SubElement(case, "skipped", message=message)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"

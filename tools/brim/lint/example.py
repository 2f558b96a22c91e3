"""Write a rule's example to disk, and show it."""

from __future__ import annotations

from pathlib import Path

from brim.lint.onnx_file import OnnxFile
from brim.lint.rule import Example

LONE_FILE = "example.pbtxt"


def write_example(example: Example, root: Path) -> Path:
    """Put the example below ``root`` and return what to lint: the file, or the small repository.

    A lone surrogate in a text stands for a byte that is not UTF-8.
    """
    if isinstance(example, str):
        example = {LONE_FILE: example}
        target = root / LONE_FILE
    else:
        target = root
    for name, content in example.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, OnnxFile):
            path.write_bytes(content.to_bytes())
        else:
            path.write_bytes(content.encode("utf-8", "surrogateescape"))
    return target


def show_example(example: Example) -> str:
    """The example as Markdown: one block a file, characters that cannot be seen as escapes."""
    if isinstance(example, str):
        return f"```protobuf\n{_visible(example)}```\n"
    blocks = []
    for name, content in example.items():
        if isinstance(content, OnnxFile):
            blocks.append(f"`{name}`: an ONNX model with {content.describe()}.\n")
        elif not content:
            blocks.append(f"`{name}`: an empty file.\n")
        else:
            language = "protobuf" if name.endswith(".pbtxt") else "text"
            blocks.append(f"`{name}`:\n\n```{language}\n{_visible(content)}```\n")
    return "\n".join(blocks)


def _visible(text: str) -> str:
    shown = "".join(
        char if char == "\n" or (char.isprintable() and char != "\ufeff") else _escape(char) for char in text
    )
    return shown if shown.endswith("\n") else shown + "\n"


def _escape(char: str) -> str:
    code = ord(char)
    if char == "\r":
        return "\\r"
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}"

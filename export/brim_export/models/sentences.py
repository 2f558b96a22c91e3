"""Varied sentences for checks: many lengths, scripts and oddities, the same for the same seed."""

from __future__ import annotations

import random

_VOCABULARY = """
batch queue token model server caller answer latency throughput GPU tensor sentence quick brown fox lazy dog
river mountain coffee morning Zürich naïve café résumé über straße señor año garçon Ångström
"""
WORDS = tuple(_VOCABULARY.split())
OTHER_SCRIPTS = (
    "こんにちは世界",
    "機械学習モデル",
    "자연어 처리",
    "Привет, как дела?",
    "Добрый день",
    "مرحبا بالعالم",
    "שלום עולם",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "Γειά σου Κόσμε",
    "ትንሽ ዓረፍተ ነገር",
)
ODDITIES = (
    "",
    " ",
    "\n\t",
    "a",
    "?",
    "🙂",
    "👩‍👩‍👧‍👦 family, 🏳️‍🌈 flag, 👍🏽 thumb",
    "e\u0301 composed late, \u00e9 composed early",
    "zero\u200bwidth\u200djoiner",
    "\u202eright to left\u202c",
    "[CLS] [SEP] [PAD] [MASK] [UNK]",
    '<b>markup</b> & entities &amp; \\escapes\\ "quotes"',
    "0123456789 " * 5,
    "supercalifragilisticexpialidocious" * 8,
    "\x00nul\x00",
    "\U0001f9ff" * 40,
)
LONG = " ".join(f"word{number}" for number in range(700))
"""More than 512 tokens, so it is cut."""


def varied_sentences(count: int, seed: int = 0) -> list[str]:
    """``count`` sentences: every oddity first, then a mix of lengths from one word to beyond the 512-token limit."""
    draw = random.Random(seed)
    fixed = [*ODDITIES, *OTHER_SCRIPTS, LONG]
    made = []
    for _ in range(max(0, count - len(fixed))):
        words = min(450, int(draw.lognormvariate(2.3, 0.9)) + 1)
        parts = [draw.choice(WORDS) for _ in range(words)]
        if draw.random() < 0.2:
            parts.insert(draw.randrange(len(parts) + 1), draw.choice(OTHER_SCRIPTS))
        if draw.random() < 0.1:
            parts.append(draw.choice(("🙂", "🚀", "...", "!?")))
        made.append(" ".join(parts) + draw.choice(("", ".", "!", "?")))
    return [*fixed, *made][:count]

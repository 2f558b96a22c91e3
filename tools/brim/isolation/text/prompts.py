"""What good callers ask: prompts of many kinds, and every way to draw a text that can be drawn again."""

from __future__ import annotations

from typing import Any

import numpy as np

from brim.measure.text.stream import Ask

SHORTEST_TOKENS = 4
LONGEST_TOKENS = 48
BEGINNINGS = (
    "Once upon a time",
    "The capital of France is",
    "def fibonacci(n):\n",
    "<|im_start|>user\nTell me about the sea.<|im_end|>\n<|im_start|>assistant\n",
    "1, 2, 3, 4, 5,",
    "Dear Sir or Madam,\n",
    "x",
    '{"name": "Ada", "born":',
)
MANY_BYTES = (
    "Repeat: 日本語のテキスト、日本語のテキスト、日本語のテキスト、",
    "🎉🎊🥳🎉🎊🥳🎉🎊🥳",
    "Grüße aus Köln: äöüß äöüß äöüß",
    "Привет, мир! Привет, мир! Привет,",
    "नमस्ते दुनिया, नमस्ते दुनिया, नमस्ते",
)
"""After these a text with characters of several bytes is likely."""
WORDS = ("time", "river", "stone", "seven", "letter", "garden", "engine", "window", "silver", "under", "market", "rain")


def words(count: int, draw: np.random.Generator) -> str:
    """So many words, drawn: a prompt of a known size that nobody has asked before."""
    return " ".join(WORDS[int(number)] for number in draw.integers(len(WORDS), size=count))


def ways_to_draw(draw: np.random.Generator) -> list[dict[str, Any]]:
    """Sampling options, each of another kind, all with a seed of their own."""
    seeds = [int(seed) for seed in draw.integers(2**31, size=8)]
    return [
        {"temperature": 0},
        {"temperature": 0.8, "seed": seeds[0]},
        {"temperature": 1.0, "top_p": 0.9, "seed": seeds[1]},
        {"temperature": 0.7, "top_k": 20, "seed": seeds[2]},
        {"temperature": 1.2, "min_p": 0.1, "seed": seeds[3]},
        {"temperature": 0, "repetition_penalty": 1.3},
        {"temperature": 0.9, "presence_penalty": 0.8, "frequency_penalty": 0.4, "seed": seeds[4]},
        {
            "temperature": 0.6,
            "top_p": 0.95,
            "top_k": 50,
            "repetition_penalty": 1.1,
            "seed": seeds[5],
            "ignore_eos": True,
        },
    ]


def good_asks(count: int, draw: np.random.Generator) -> list[Ask]:
    """Different prompts, ways of drawing and lengths; every pair of a prompt and a way before any comes twice."""
    prompts = [*BEGINNINGS, *MANY_BYTES, f"Summary of the list: {words(120, draw)}.\nThe first word is"]
    ways = ways_to_draw(draw)
    first_way = int(draw.integers(len(ways)))
    found = []
    for number in range(count):
        # With each round every prompt meets the next way.
        way = ways[(first_way + number + number // len(prompts)) % len(ways)]
        most = int(draw.integers(SHORTEST_TOKENS, LONGEST_TOKENS + 1))
        found.append(Ask(prompts[number % len(prompts)].encode(), {**way, "max_tokens": most}))
    return found

"""Prompts of a wanted number of tokens, without the model's tokenizer: words, and how many tokens the server makes of them.

Texts differ from their first word on, so that no prefix cache makes them cheap, unless a shared prefix is asked for.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random

from brim.engine.traffic import Call
from brim.errors import CouldNotTell
from brim.measure.text.stream import Ask, TextCallers

_LISTED = (
    "the of and to in is was for on that with as it by he from at his an are which this be or had first not their has one"
    " but who after were they her she have also two its been time all new when more other up would into there about most"
    " year people only over some out city years him many between where state then than used being these during may world"
    " three such under before while known made later so part can became team second through until since both work day name"
    " life school number war house early any system high several each will family century group well did even set best"
    " game same area long home line end another great place still called now general four small public large own back"
)
WORDS = tuple(_LISTED.split())
"""Short ones, which a vocabulary of English text has whole, with the space before them."""
SHORT_WORDS, LONG_WORDS = 16, 144
"""Prompts from whose counts the tokens of a word are worked out."""
CALIBRATIONS = 2
"""So many requests."""
ONE_TOKEN = {"max_tokens": 1, "temperature": 0, "ignore_eos": True}
COUNT_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class WordCount:
    """How a model's tokenizer counts words.

    Attributes:
        base_tokens: of a prompt whatever it says, such as a token for its beginning.
        tokens_per_word: of each further word.
        told: whether the server said so; when not, a word is taken for a token.
    """

    base_tokens: float = 0.0
    tokens_per_word: float = 1.0
    told: bool = False

    def words(self, tokens: int) -> int:
        """Words of a prompt of so many tokens; one at least."""
        return max(1, round((tokens - self.base_tokens) / self.tokens_per_word))


async def count_words(callers: TextCallers, seed: str) -> WordCount:
    """Ask the server for two prompts' tokens. Both answers are of one token, and also warm its connections.

    Raises:
        CouldNotTell: it answers neither.
    """
    counts = []
    for words in (SHORT_WORDS, LONG_WORDS):
        heard = await callers.ask(Ask(_text(words, f"{seed}.{words}"), ONE_TOKEN), limit_s=COUNT_LIMIT_S)
        if not heard.complete:
            raise CouldNotTell(
                f"a prompt of {words} words was not answered: {heard.error or 'without a finish reason'}",
                hint="the model must speak the vLLM backend's inputs and outputs over gRPC streams",
            )
        counts.append(heard.input_tokens)
    short, long = counts
    if not 0 < short < long:
        return WordCount()
    per_word = (long - short) / (LONG_WORDS - SHORT_WORDS)
    return WordCount(short - per_word * SHORT_WORDS, per_word, told=True)


@dataclass(frozen=True, slots=True)
class Prompts:
    """Makes prompts.

    Attributes:
        count: how the model counts.
        seed: of the words; another one for every run, or a server's prefix cache knows them already.
        shared_tokens: leading tokens that all prompts have in common; their words depend on ``shared_seed`` alone.
        shared_seed: of the shared words.
    """

    count: WordCount
    seed: str
    shared_tokens: int = 0
    shared_seed: str = ""

    def prompt(self, call: Call, number: int) -> bytes:
        """The prompt of a call. The same call, number and seeds give the same prompt."""
        words = self.count.words(call.prompt_tokens)
        shared = min(words, self.count.words(self.shared_tokens)) if self.shared_tokens else 0
        return _text(shared, f"{self.shared_seed}.shared") + _text(words - shared, f"{self.seed}.{number}")


def _text(words: int, seed: str) -> bytes:
    """So many words, each with a space before it."""
    draw = Random(hashlib.sha256(seed.encode()).digest())
    return "".join(f" {word}" for word in draw.choices(WORDS, k=words)).encode()

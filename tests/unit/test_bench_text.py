"""Sentences of wanted lengths, the ways through an encoder without a server, and the server's count of tokens."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from brim.bench.offline import OfflineEncoder
from brim.bench.padding import offline_encoder
from brim.bench.runtime_cost import Segment, unlike
from brim.bench.sentences import LONGEST, SHORTEST, lengths, one_token_words, sentences
from brim.bench.token_count import TokenCount, parse_tokens
from brim.paths import Project
from brim.service.load import find_service


@pytest.fixture(scope="module")
def encoder(exported: Project) -> OfflineEncoder:
    return offline_encoder(exported, find_service(exported.services, "text_embedding"))


def test_lengths_are_lognormal_and_the_same_for_the_same_seed() -> None:
    drawn = lengths(4000, 5)
    assert min(drawn) >= SHORTEST and max(drawn) <= LONGEST
    assert 42 < statistics.mean(drawn) < 46
    assert statistics.median(drawn) < statistics.mean(drawn)
    assert drawn == lengths(4000, 5) != lengths(4000, 6)


def test_sentences_have_the_lengths_that_were_wanted(encoder: OfflineEncoder) -> None:
    wanted = [SHORTEST, LONGEST, *lengths(50, 1)]
    texts = sentences(encoder.tokenizer, wanted, 1)
    assert [len(encoder.tokenizer.encode(text).ids) for text in texts] == wanted
    assert texts == sentences(encoder.tokenizer, wanted, 1)
    assert len({word for text in texts for word in text.split()}) > 500
    assert len(one_token_words(encoder.tokenizer)) > 10_000


def test_a_length_without_room_for_a_word_is_refused(encoder: OfflineEncoder) -> None:
    with pytest.raises(ValueError, match="nothing can be built"):
        sentences(encoder.tokenizer, [2], 0)


def test_every_way_gives_the_same_embeddings_in_order(encoder: OfflineEncoder) -> None:
    texts = sentences(encoder.tokenizer, [40, 5, 9, 5, 61, 12], 2)
    alone = encoder.one_by_one(texts)
    assert alone.shape == (6, 384)
    for way in (encoder.naive, encoder.sorted_and_cut):
        np.testing.assert_allclose(way(texts), alone, atol=1e-5)


def test_tokens_are_those_of_all_instances_of_the_model() -> None:
    page = """# TYPE brim_real_tokens_total counter
brim_real_tokens_total{model="m",process="7",version="1"} 100
brim_real_tokens_total{model="m",process="8",version="1"} 11
brim_real_tokens_total{model="mm",process="9",version="1"} 5000
brim_padded_tokens_total{model="m",process="7",version="1"} 1.2e+02
nv_inference_count{model="m",version="1"} 3
"""
    assert parse_tokens(page, "m") == TokenCount(111, 120)
    assert parse_tokens(page, "other") == TokenCount(0, 0)
    assert TokenCount(111, 120).since(TokenCount(11, 20)) == TokenCount(100, 100)


def test_pairs_are_compared_by_their_batches() -> None:
    assert unlike(Segment(1, 1, 50), Segment(1, 1, 60)) == pytest.approx(0.2)
    assert unlike(Segment(1, 1, 60), Segment(1, 1, 50)) == pytest.approx(0.2)

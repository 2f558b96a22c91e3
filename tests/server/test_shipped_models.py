"""The two shipped models on the real server: the right answers, alone and in company, over both protocols."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from brim.limits import BATCH_LIMIT
from brim.measure import batch_stats
from brim.measure.callers import ask_all
from brim.measure.plan import Protocol
from brim.server.embedded import EmbeddedServer
from brim_export.models import image_classifier, text_embedding
from brim_export.models.sentences import LONG, varied_sentences
from tests.server.settled import settled_totals

CALLERS = 200
EACH = 2
"""How often each sentence is asked for among so many callers."""
REQUESTS = 2_000
ANSWER_TIMEOUT_S = 300.0
SENTENCES = 500
Array = np.ndarray[Any, Any]


def address(server: EmbeddedServer, protocol: Protocol) -> str:
    return server.endpoint.http if protocol is Protocol.HTTP else server.endpoint.grpc


def outputs(
    server: EmbeddedServer, protocol: Protocol, model: str, rows: list[dict[str, Array]], output: str, callers: int
) -> list[Array]:
    """Every answer's row, in the order of the requests; a request without an answer fails the test."""
    answers = ask_all(address(server, protocol), protocol, model, rows, callers, ANSWER_TIMEOUT_S)
    assert [answer.error for answer in answers if answer.error] == []
    return [answer.outputs[output][0] for answer in answers if answer.outputs is not None]


@pytest.fixture(scope="module")
def sentences() -> tuple[list[str], Array]:
    """Varied sentences and what transformers makes of each, alone."""
    texts = varied_sentences(SENTENCES)
    return texts, text_embedding.reference(texts)


def as_text(sentence: str) -> dict[str, Array]:
    return {"TEXT": np.array([[sentence.encode("utf-8")]], dtype=np.object_)}


def test_the_sentences_are_varied() -> None:
    texts = varied_sentences(SENTENCES)
    assert len(texts) == SENTENCES
    assert {"", "a", "🙂", LONG} <= set(texts)
    assert len(LONG.split()) > 512
    assert any("\u0400" <= letter <= "\u04ff" for text in texts for letter in text)


@pytest.mark.parametrize("protocol", list(Protocol))
@pytest.mark.parametrize("callers", [1, 50])
def test_embeddings_equal_transformers(
    shipped: EmbeddedServer, sentences: tuple[list[str], Array], protocol: Protocol, callers: int
) -> None:
    texts, expected = sentences
    if callers == 1:
        texts, expected = texts[:60], expected[:60]
    got = outputs(shipped, protocol, "text_embedding", [as_text(text) for text in texts], "EMBEDDING", callers)
    assert len(got) == len(texts)
    np.testing.assert_allclose(np.stack(got), expected, rtol=0, atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(np.stack(got), axis=1), 1.0, atol=1e-5)


@pytest.mark.parametrize("protocol", list(Protocol))
def test_digits_are_recognised(shipped: EmbeddedServer, protocol: Protocol) -> None:
    images, labels = image_classifier.held_out()
    rows = [{"IMAGE": image[np.newaxis].astype(np.float32)} for image in images]
    got = np.stack(outputs(shipped, protocol, "image_classifier", rows, "PROBABILITIES", 50))
    assert (got.argmax(axis=1) == labels).mean() >= 0.97
    np.testing.assert_allclose(got, image_classifier.reference(images), rtol=0, atol=1e-5)


@pytest.mark.parametrize("protocol", list(Protocol))
def test_two_hundred_callers_fill_batches_and_each_gets_its_own(
    shipped: EmbeddedServer, sentences: tuple[list[str], Array], protocol: Protocol
) -> None:
    texts, expected = sentences
    order = np.random.default_rng(7).permutation(np.repeat(np.arange(len(texts)), EACH))
    rows = [as_text(texts[index]) for index in order]
    before = settled_totals(shipped.endpoint, "text_embedding")
    got = outputs(shipped, protocol, "text_embedding", rows, "EMBEDDING", CALLERS)
    after = settled_totals(shipped.endpoint, "text_embedding")
    assert len(got) == len(order) >= 5 * CALLERS
    np.testing.assert_allclose(np.stack(got), expected[order], rtol=0, atol=1e-4)
    stats = batch_stats.difference(before, after, instances=1)
    assert stats.inferences == len(order)
    assert max(stats.executions_by_size) <= BATCH_LIMIT
    assert stats.mean_batch is not None and stats.mean_batch > 20


@pytest.mark.parametrize("protocol", list(Protocol))
def test_two_hundred_callers_each_get_their_own_digit(shipped: EmbeddedServer, protocol: Protocol) -> None:
    images, _ = image_classifier.held_out()
    order = np.random.default_rng(8).integers(0, len(images), REQUESTS)
    rows = [{"IMAGE": images[index][np.newaxis].astype(np.float32)} for index in order]
    before = settled_totals(shipped.endpoint, "image_classifier")
    got = outputs(shipped, protocol, "image_classifier", rows, "PROBABILITIES", CALLERS)
    after = settled_totals(shipped.endpoint, "image_classifier")
    np.testing.assert_allclose(np.stack(got), image_classifier.reference(images)[order], rtol=0, atol=1e-5)
    stats = batch_stats.difference(before, after, instances=1)
    assert stats.inferences == REQUESTS
    assert max(stats.executions_by_size) <= BATCH_LIMIT

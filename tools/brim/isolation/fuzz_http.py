"""Right HTTP requests of a model, broken on purpose."""

from __future__ import annotations

from random import Random

from brim.isolation.fuzz_draft import HttpDraft, HttpKind, Stage
from brim.isolation.fuzz_json import JSON_KINDS
from brim.isolation.fuzz_transfer import TRANSFER_KINDS

HTTP_KINDS = (*JSON_KINDS, *TRANSFER_KINDS)


def broken(draft: HttpDraft, kinds: list[HttpKind], draw: Random) -> HttpDraft:
    """Apply the kinds, each at its stage; afterwards ``writes`` is what travels."""
    for stage in Stage:
        for kind in kinds:
            # After a change of the text itself there is no document to change any more.
            if kind.stage is stage and not (stage is Stage.JSON and isinstance(draft.document, bytes)):
                kind.change(draft, draw)
        draft.finish(stage)
    return draft

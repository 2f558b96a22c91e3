"""Whether replicas serve the same: a model's versions on each, and who is the odd one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

Versions = Mapping[str, tuple[str, ...]]
"""Model name -> its versions that are ready; empty where the model is not."""


def odd_ones(found: Mapping[str, Versions]) -> dict[str, str]:
    """Whoever differs from most of the others, and in what. Where as many say one thing as another, the earlier ones are right.

    So a version that is brought in replica by replica is never served beside another one, and somebody always serves.

    Args:
        found: replica name -> what it has, the oldest replica first.
    """
    faults: dict[str, list[str]] = {}
    for model in sorted({model for versions in found.values() for model in versions}):
        seen = Counter(versions[model] for versions in found.values() if versions.get(model))
        if not seen:
            usual: tuple[str, ...] = ()
        else:
            # Of equals, the one that was counted first comes first.
            usual = seen.most_common(1)[0][0]
        for name, versions in found.items():
            own = versions.get(model, ())
            if not own:
                faults.setdefault(name, []).append(f"{model} is not ready there")
            elif own != usual:
                faults.setdefault(name, []).append(
                    f"{model} has version {', '.join(own)} there and {', '.join(usual)} elsewhere"
                )
    return {name: "; ".join(texts) for name, texts in faults.items()}

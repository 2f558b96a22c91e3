"""One candidate: what tuning may change of how texts are generated."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from brim.config.files import VERSION
from brim.config.generation import MODEL_NAMES, engine_settings, generation_of, is_gguf
from brim.engine.admission import Policy
from brim.engine.engine import EngineLimits
from brim.engine.engine_process import EngineArguments
from brim.engine.settings import Settings
from brim.paths import Project
from brim.service.schema import KV_BLOCK_TOKENS, Generation, Service

ANY_VOCABULARY = 2**31
"""Of an engine that is only simulated."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is tried; names and meanings are those of the service file's ``generation``.

    Attributes:
        chunk_tokens: most tokens of one step.
        max_sequences: most texts that are generated at once.
        kv_blocks: blocks of the KV cache.
        batch_kept_share: of seats and cache, what classes after the first keep against the first.
    """

    chunk_tokens: int
    max_sequences: int
    kv_blocks: int
    batch_kept_share: float = 1.0

    def __str__(self) -> str:
        """For people."""
        said = f"{self.chunk_tokens} tokens a step, {self.max_sequences} texts, {self.kv_blocks} blocks"
        return said if self.batch_kept_share == 1 else f"{said}, batch keeps {self.batch_kept_share:.0%}"

    def as_json(self) -> dict[str, float]:
        """As it stands in files."""
        return asdict(self)


def setting_of(service: Service) -> Setting:
    """What the service file says now, or means by saying nothing.

    Raises:
        ValueError: it is no language model's.
    """
    return Setting(**{name: getattr(generation_of(service), name) for name in Setting.__dataclass_fields__})


DEFAULT = Setting(**{name: Generation.model_fields[name].default for name in Setting.__dataclass_fields__})
"""What an empty ``generation`` means."""


def with_setting(service: Service, setting: Setting) -> Service:
    """The service under the setting, everything else as it is.

    Raises:
        pydantic.ValidationError: a step of the setting has no room for its texts.
    """
    generation = {**generation_of(service).model_dump(), **setting.as_json()}
    return service.model_copy(update={"generation": Generation.model_validate(generation)})


def host_settings(service: Service) -> Settings:
    """What the host of the service's model is started with."""
    return Settings.model_validate(engine_settings(service))


def limits_of(settings: Settings) -> EngineLimits:
    """What an engine that is started so can hold."""
    return EngineLimits(
        settings.kv_blocks,
        KV_BLOCK_TOKENS,
        settings.chunk_tokens,
        settings.context_tokens,
        ANY_VOCABULARY,
        prefix_cache=settings.prefix_cache,
    )


def policy_of(service: Service) -> Policy:
    """What the scheduler of the service decides by."""
    return host_settings(service).policy


def engine_arguments(project: Project, service: Service) -> EngineArguments:
    """What the engine of an exported service is started with."""
    settings = host_settings(service)
    name = MODEL_NAMES["gguf" if is_gguf(service) else "folder"]
    return EngineArguments(
        str(project.model_repository / service.name / VERSION / name),
        context_tokens=settings.context_tokens,
        kv_blocks=settings.kv_blocks,
        chunk_tokens=settings.chunk_tokens,
        precision=settings.precision,
        threads=settings.threads,
        prefix_cache=settings.prefix_cache,
    )

"""Every error that Brim raises on purpose. Each becomes one clear message and an exit code at the command line."""

from __future__ import annotations


class BrimError(Exception):
    """Something that Brim can explain: what happened, and a hint at the way out."""

    code = "error"
    exit_code = 2

    def __init__(self, message: str, *, hint: str) -> None:
        """Keep the message for ``str()`` and the hint, which says what to do, for the ``hint:`` line."""
        super().__init__(message)
        self.message = message
        self.hint = hint


class InputError(BrimError):
    """What the user gave is wrong: a file, a name, a value."""

    code = "input"


class ServiceFileError(InputError):
    """A service file cannot be read or breaks its schema."""

    code = "service_file"


class UnknownService(InputError):
    """No service has the given name."""

    code = "unknown_service"


class ModelFileError(InputError):
    """A model file is missing, corrupt or not what its service says."""

    code = "model_file"


class PortInUse(InputError):
    """A port that was asked for is taken."""

    code = "port_in_use"


class NoSpace(InputError):
    """The disk or /dev/shm has no room for what must be written."""

    code = "no_space"


class AnswerIsNo(BrimError):
    """The command worked, and its answer is no: a gate refused, a check failed, an objective was missed."""

    code = "no"
    exit_code = 1


class GateRefused(AnswerIsNo):
    """An export gate found the model unfit to share batches."""

    code = "gate_refused"


class CouldNotTell(BrimError):
    """No verdict: the machine was too noisy, or a tool is missing."""

    code = "could_not_tell"
    exit_code = 3


class MissingTool(CouldNotTell):
    """A program that this step needs is neither here nor to be had."""

    code = "missing_tool"


class ServerFailed(BrimError):
    """The server did not start, died, or does not answer."""

    code = "server_failed"

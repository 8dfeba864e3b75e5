"""The few kinds of error a user can meet; each message says what was expected, what came, what to do."""

LAST_WITH_RETIRED_PARTS = "smoothcert 0.1 (commit 2632d2d)"
"""The version that still has the procedures and layers removed since, for messages about files that need them."""


class SmoothcertError(Exception):
    """Base of every error raised on purpose by this package."""

    exit_code = 1


class ConfigError(SmoothcertError, ValueError):
    """A setting is outside its allowed range, misspelt, or contradicts another one."""

    exit_code = 2


class InputError(SmoothcertError, ValueError):
    """An input or label is not what the classifier was declared to take."""

    exit_code = 2


class ModelError(SmoothcertError, RuntimeError):
    """The base classifier breaks the contract that the guarantee rests on."""

    exit_code = 3


class ModelChangedError(ModelError):
    """The base classifier's weights changed while it was being certified."""


class RowsFailedError(ModelError):
    """A run went to its end, but some inputs failed."""


class ResumeError(SmoothcertError, RuntimeError):
    """A run on disk is not the one that is being resumed."""

    exit_code = 4


class VerificationError(SmoothcertError):
    """A run is not what it claims to be."""

    exit_code = 1


class RetiredProcedureError(SmoothcertError):
    """A run cannot be verified, because its procedure is one that this version does not have."""

    exit_code = 7


class OutputError(SmoothcertError, OSError):
    """The output cannot be written where it was asked for."""

    exit_code = 6


class MissingExtraError(SmoothcertError, ImportError):
    """An optional dependency is not installed."""

    exit_code = 5

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(package, extra)  # these, not the message: it is made again from them when it is unpickled

    def __str__(self) -> str:
        package, extra = self.args
        return f"{package} is needed for this: pip install 'smoothcert[{extra}]'"

"""Every error that Octavo raises on purpose.

::

    EngineError
    ├── ConfigError              a setting is wrong or contradicts another
    ├── RequestError             one request cannot be served as sent; the client can mend it
    │   ├── InvalidParameter     a value is out of range or of the wrong type
    │   ├── UnsupportedParameter a known parameter that this engine does not offer
    │   └── ContextTooLong       prompt (+ output) exceeds the model or the KV cache
    ├── CapacityError            the machine is too small for what was asked
    ├── ModelLoadError           a checkpoint cannot be loaded
    │   ├── MissingWeight        a tensor is absent, surplus or of the wrong shape
    │   └── UnknownArchitecture  no model file for this architecture
    ├── EngineDraining           the server is about to leave and takes no new requests
    ├── Overloaded               too much waits already; the same request may be served later
    ├── RequestTimeout           a request was not done by its deadline
    └── ExecutorError            the device failed while running a step
        └── EngineDead           the engine is gone; every request in flight fails with this
            └── EngineRestarting it is being started again, and takes no requests meanwhile

A message says what happened, with the numbers, and what to do about it. The HTTP status of each
class is in one table, ``octavo/server/errors.py``.
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of every deliberate error."""

    retry_after_s: float | None = None
    """When it makes sense to send the same request again, in seconds from now, if ever."""


class ConfigError(EngineError):
    """A setting is wrong or contradicts another."""


class RequestError(EngineError):
    """One request cannot be served as sent.

    ``param`` names the field at fault, as the client wrote it, if there is one.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidParameter(RequestError):
    """A value is out of range or of the wrong type."""


class UnsupportedParameter(RequestError):
    """A known parameter that this engine does not offer."""


class ContextTooLong(RequestError):
    """The prompt, or prompt and output together, exceed the model or the KV cache."""


class CapacityError(EngineError):
    """The machine is too small for what was asked."""


class ModelLoadError(EngineError):
    """A checkpoint cannot be loaded."""


class MissingWeight(ModelLoadError):
    """A tensor is absent, surplus or of the wrong shape."""


class UnknownArchitecture(ModelLoadError):
    """No model file exists for this architecture."""


class EngineDraining(EngineError):
    """The server is about to leave and takes no new requests."""


class Overloaded(EngineError):
    """Too much waits already; the same request may be served later."""


class RequestTimeout(EngineError):
    """A request was not done by its deadline."""


class ExecutorError(EngineError):
    """The device failed while running a step, and can run others."""


class EngineDead(ExecutorError):
    """The engine is gone; every request in flight fails with this."""


class EngineRestarting(EngineDead):
    """The engine is being started again, and takes no requests meanwhile."""

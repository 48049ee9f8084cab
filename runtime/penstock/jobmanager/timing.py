"""Time as the core sees it: the moment of an event, and how long others are waited for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Moment:
    """Now, on both clocks."""

    now_us: int
    monotonic: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long the JobManager waits, in seconds."""

    heartbeat_timeout: float = 5.0
    """A TaskManager that is silent for this long is lost; it beats every half second."""

    cause_grace: float = 0.2
    """After a lost connection, whoever caused it has this long to say why before all its slots are ended."""

    deploy_timeout: float = 300.0
    """From Deploy to Running: large state takes a while to read."""

    repeat: float = 5.0
    """Cancel, and the Commit of a last checkpoint, are said again when nothing follows from them."""

    journal_retry: float = 1.0
    """Between tries to write how a job ended, when the store refuses."""

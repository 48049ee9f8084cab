"""Why regions of a job failed, as people are told."""

from dataclasses import dataclass
from typing import Final

from penstock.model.ids import Attempt
from penstock.model.messages import Failed
from penstock.model.views import FailureView

SHOWN: Final = 50


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a region cannot go on."""

    code: str
    reason: str
    place: str = ""
    secondary: bool = False
    """A lost connection or process: somebody else's failure is the cause, if one is known."""
    fatal: bool = False

    def __str__(self) -> str:
        return f"{self.code} {self.place}: {self.reason}" if self.place else f"{self.code} {self.reason}"


def from_message(message: Failed) -> Failure:
    """What a slot has to say."""
    place = str(message.subtask or message.slot)
    reason = message.reason.removeprefix(f"{message.code} ")  # errors of ours begin with their code
    return Failure(message.code, reason, place, message.secondary, message.fatal)


@dataclass(slots=True)
class _Record:
    failure: Failure
    attempt: Attempt
    time_us: int


class FailureLog:
    """The last failures, oldest first."""

    def __init__(self) -> None:
        self._records: list[_Record] = []

    def add(self, failure: Failure, attempt: Attempt, now_us: int) -> None:
        """A region failed."""
        self._records.append(_Record(failure, attempt, now_us))
        del self._records[:-SHOWN]

    def explain(self, cause: Failure, attempt: Attempt) -> str | None:
        """A cause that came too late replaces the lost connection that was noted in its place; returns that one."""
        for record in self._records:
            if record.attempt == attempt and record.failure.secondary and not cause.secondary:
                effect, record.failure = record.failure, cause
                return str(effect)
        return None

    def views(self) -> tuple[FailureView, ...]:
        """For people."""
        return tuple(
            FailureView(
                time_us=record.time_us,
                attempt=record.attempt,
                code=record.failure.code,
                reason=record.failure.reason,
                place=record.failure.place,
            )
            for record in self._records
        )

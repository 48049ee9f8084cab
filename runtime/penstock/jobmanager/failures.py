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
    return Failure(message.code, message.reason, place, message.secondary, message.fatal)


class FailureLog:
    """The last failures, oldest first."""

    def __init__(self) -> None:
        self._views: list[FailureView] = []
        self._last_is_secondary = False

    def add(self, failure: Failure, attempt: Attempt, now_us: int) -> None:
        """A region failed."""
        self._last_is_secondary = failure.secondary
        self._views.append(
            FailureView(time_us=now_us, attempt=attempt, code=failure.code, reason=failure.reason, place=failure.place)
        )
        del self._views[:-SHOWN]

    def explain(self, failure: Failure, attempt: Attempt) -> bool:
        """A cause that came too late replaces the lost connection that was noted in its place."""
        if not self._last_is_secondary or failure.secondary or self._views[-1].attempt != attempt:
            return False
        self.add(failure, attempt, self._views.pop().time_us)
        return True

    def views(self) -> tuple[FailureView, ...]:
        """For people."""
        return tuple(self._views)

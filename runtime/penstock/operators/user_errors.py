"""User code that raises (P007) or does not return (P008), told so that users find the line: their own stack first."""

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType

from penstock.model.errors import PenstockError, RetryableError, UserError
from penstock.operators.base import Operator, OperatorContext
from penstock.state.columns import shorten

_OWN_CODE = str(Path(__file__).resolve().parents[1])
_GENERATED_CODE = "<penstock"

_OWN_FRAMES_SHOWN = 5
"""When it is our own code that does not return: the innermost frames tell which kernel it is."""


class FunctionFailed(RetryableError):
    """A user's function raised. The job starts again from its last checkpoint, within its restart budget."""


def place(context: OperatorContext) -> str:
    """Where an operator runs, for messages."""
    return f"{context.uid}[{context.subtask.index}]"


@contextmanager
def user_code(
    context: OperatorContext, function: str, row: Callable[[], Mapping[str, object] | None] = lambda: None
) -> Iterator[None]:
    """Run user code; `row` is asked for the values that were passed when it raises.

    SystemExit is an error too: a function that calls `sys.exit` must not end the process without a word.
    """
    try:
        yield
    except UserError as error:
        if error.where is None:
            raise type(error)(error.code, error.what, where=place(context), fix=error.fix) from None
        raise
    except PenstockError:
        raise
    except (Exception, SystemExit) as error:
        raise FunctionFailed("P007", _tell(error, function, row()), where=place(context)) from error


def _tell(error: BaseException, function: str, row: Mapping[str, object] | None) -> str:
    frames = traceback.extract_tb(_users_part(error.__traceback__))
    stack = "".join(traceback.format_list(frames)) + "".join(traceback.format_exception_only(error))
    values = "" if row is None else "\n  with " + ", ".join(f"{name}={shorten(value)}" for name, value in row.items())
    return f"{function} raised {type(error).__name__}\n{stack.rstrip()}{values}"


def _users_part(stack: TracebackType | None) -> TracebackType | None:
    """The stack from the first frame on that is not ours."""
    here = stack
    while here is not None:
        if not _is_ours(here.tb_frame):
            return here
        here = here.tb_next
    return stack


def describe_stuck(frame: FrameType) -> str:
    """What a thread does that does not come back: its operator, and the stack from the user's first line on."""
    stack = [each for each, _ in traceback.walk_stack(frame)][::-1]
    entered = next((index for index, each in enumerate(stack) if _is_ours(each)), 0)
    users = next((index for index in range(entered, len(stack)) if not _is_ours(stack[index])), None)
    first = max(0, len(stack) - _OWN_FRAMES_SHOWN) if users is None else users
    lines = traceback.StackSummary.extract((each, each.f_lineno) for each in stack[first:]).format()
    operators = (each.f_locals.get("self") for each in reversed(stack))
    stuck = next((each.context.uid for each in operators if isinstance(each, Operator)), None)
    in_operator = f'in operator "{stuck}"' if stuck is not None else "outside of any operator"
    return f"{in_operator}, here:\n{''.join(lines)}".rstrip()


def _is_ours(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith((_OWN_CODE, _GENERATED_CODE)) or "contextlib" in file

"""Exceptions of user code, told so that the user finds the line: their own stack first (P007)."""

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from penstock.model.errors import PenstockError, RetryableError, UserError
from penstock.operators.base import OperatorContext
from penstock.state.columns import shorten

_OWN_CODE = str(Path(__file__).resolve().parents[1])
_GENERATED_CODE = "<penstock"


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
        file = here.tb_frame.f_code.co_filename
        if not file.startswith((_OWN_CODE, _GENERATED_CODE)) and "contextlib" not in file:
            return here
        here = here.tb_next
    return stack

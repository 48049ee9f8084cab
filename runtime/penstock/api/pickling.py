"""The bytes of a user's function, for the slots that run it.

By value: what is defined in the script that runs, or in files next to the user's own program, since no other
process can import those. By reference: everything that is installed.
Slots open these bytes; the JobManager never does.
"""

import contextlib
import functools
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import cloudpickle

from penstock.api import places
from penstock.model.errors import UserError

_MAX_DEPTH = 8
"""Deeper than anybody nests clients in objects; bounds the search on graphs of objects."""


def dump(function: object, *, name: str, where: str) -> bytes:
    """The function as bytes; what cannot travel is reported by the way that leads to it."""
    with program_by_value():
        try:
            pickled: bytes = cloudpickle.dumps(function)
        except Exception as error:
            culprit, path = _find_unpicklable(function)
            via = f" via {path}" if path else ""
            raise UserError(
                "P004",
                f'operator "{name}" captures a non-serialisable {_type_name(culprit)}{via} ({error})',
                where=where,
                fix="make it inside the function when it is first needed, or in `open` of a KeyedProcessFunction",
            ) from None
    return pickled


def program_by_value() -> contextlib.AbstractContextManager[None]:
    """What is pickled inside takes the code of the user's program with it."""
    # The caller is looked up here and not inside, where the innermost foreign frame is contextlib's.
    return _by_value(_modules.of(places.caller_file()))


@contextlib.contextmanager
def _by_value(modules: list[ModuleType]) -> Iterator[None]:
    registered = set(cloudpickle.list_registry_pickle_by_value())
    ours = [module for module in modules if module.__name__ not in registered]
    for module in ours:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in ours:
            cloudpickle.unregister_pickle_by_value(module)


class _ProgramModules:
    """Loaded modules that lie in the folder of the user's program or below, and are not installed.

    Every expression asks, and there are thousands of modules: they are looked through only when they have changed.
    """

    def __init__(self) -> None:
        self._program: Path | None = None
        self._loaded: list[ModuleType] = []
        self._found: list[ModuleType] = []

    def of(self, program: Path | None) -> list[ModuleType]:
        """As they are loaded now."""
        loaded = list(sys.modules.values())
        if program != self._program or loaded != self._loaded:
            self._program, self._loaded = program, loaded
            self._found = [] if program is None else _modules_below(program.resolve().parent)
        return self._found


_modules = _ProgramModules()


def _modules_below(folder: Path) -> list[ModuleType]:
    return [
        module
        for name, module in list(sys.modules.items())
        if name != "__main__"
        and isinstance(module, ModuleType)
        and module.__name__ == name
        and (file := getattr(module, "__file__", None))
        and _is_own(str(file), folder)
    ]


@functools.lru_cache(maxsize=16_384)
def _is_own(file: str, folder: Path) -> bool:
    path = Path(file).resolve()
    return path.is_relative_to(folder) and not any(path.is_relative_to(root) for root in _installed_roots())


@functools.cache
def _installed_roots() -> tuple[Path, ...]:
    library = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    package = str(Path(__file__).parent.parent)
    return tuple(Path(root).resolve() for root in (*library, *site.getsitepackages(), package))


def _find_unpicklable(value: object) -> tuple[object, str]:
    """The innermost thing that cannot be pickled, and how it is reached from the function."""
    path, seen = "", {id(value)}
    for _ in range(_MAX_DEPTH):
        for step, child in _parts(value):
            if id(child) not in seen and not _is_picklable(child):
                seen.add(id(child))
                path = step(path)
                value = child
                break
        else:
            return value, path
    return value, path


def _parts(value: object) -> Iterator[tuple[Callable[[str], str], Any]]:
    """What a value holds, each with how its path is written."""
    match value:
        case MethodType():
            yield _named("self"), value.__self__
            yield from _parts(value.__func__)
        case FunctionType():
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                if (content := _content(cell)) is not None:
                    yield _named(name), content
            for name in value.__code__.co_names:
                if name in value.__globals__:
                    yield _named(name), value.__globals__[name]
            for default in value.__defaults__ or ():
                yield _named("a default value"), default
        case functools.partial():
            yield _named("partial"), value.func
            for index, argument in enumerate(value.args):
                yield _named(f"partial argument {index}"), argument
            for name, argument in value.keywords.items():
                yield _named(name), argument
        case dict():
            for key, item in value.items():
                yield _indexed(key), item
        case list() | tuple() | set() | frozenset():
            for index, item in enumerate(value):
                yield _indexed(index), item
        case type():
            for name, attribute in vars(value).items():
                yield _attribute(name), attribute
        case _:
            for name, attribute in getattr(value, "__dict__", {}).items():
                yield _attribute(name), attribute
            yield from ((_attribute("__class__"), type(value)),)


def _named(name: str) -> Callable[[str], str]:
    return lambda path: f"{path}.{name}" if path else name


def _indexed(key: object) -> Callable[[str], str]:
    return lambda path: f"{path}[{key!r}]"


def _attribute(name: str) -> Callable[[str], str]:
    return lambda path: f"{path or 'self'}.{name}"


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not yet filled: a function that refers to itself while it is being defined
        return None


def _is_picklable(value: object) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"

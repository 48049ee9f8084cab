"""From a reference to a program (`file.py:function`, `module:function`) to its job graph.

Loading runs the user's file, so whatever can go wrong in it is reported with the user's own file and line.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from penstock.api import checks, places
from penstock.api.flows import DEFAULT_MAX_PARALLELISM, Flow
from penstock.graph import JobGraph
from penstock.model.errors import PenstockError, UserError
from penstock.model.settings import JobSettings

Program = Callable[[Flow], object]
_FLOW_PARAMETER = "flow"


def load_program(reference: str) -> Program:
    """The function that builds a flow.

    `reference` is `file.py:function` or `package.module:function`; the function may be left out when the file
    has just one with a parameter `flow`.
    """
    target, _, function_name = reference.partition(":")
    module = _load_file(Path(target)) if target.endswith(".py") else _load_module(target)
    if function_name:
        return _named_function(module, function_name, target)
    return _only_function(module, target)


def build(
    program: str | Program,
    *,
    parallelism: int = 1,
    settings: JobSettings | None = None,
    max_parallelism: int = DEFAULT_MAX_PARALLELISM,
) -> JobGraph:
    """Run the program's function on an empty flow, and plan what it built."""
    function = load_program(program) if isinstance(program, str) else program
    flow = Flow(getattr(function, "__name__", "flow").replace("_", "-"), settings=settings)
    try:
        function(flow)
    except PenstockError:
        raise
    except Exception as error:
        raise _failed(error, getattr(function, "__name__", "the program"), folder=_folder_of(function)) from error
    return flow.plan(parallelism=parallelism, max_parallelism=max_parallelism, settings=settings)


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        folder = path.parent
        programs = [found.name for found in sorted(folder.glob("*.py"))] if folder.is_dir() else []
        guess = checks.nearest(path.name, programs)
        raise UserError(
            "P001",
            f"{path}: no such file",
            fix=f"did you mean {folder / guess}?" if guess else "give the path of the program: file.py:function",
        )
    resolved = path.resolve()
    # As if it were started as a script: modules next to it can be imported.
    if str(resolved.parent) not in sys.path:
        sys.path.insert(0, str(resolved.parent))
    name = resolved.stem
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) != str(resolved):
        name = f"penstock_program_{name}"
    spec = importlib.util.spec_from_file_location(name, resolved)
    if spec is None or spec.loader is None:
        raise UserError("P001", f"{path}: cannot be loaded as Python", fix="give a .py file")
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs: dataclasses and pickling look their module up by name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, PenstockError) or not isinstance(error, Exception | SystemExit):
            raise
        raise _failed(error, path.name, folder=resolved.parent) from error
    return module


def _load_module(name: str) -> ModuleType:
    try:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return importlib.import_module(name)
    except PenstockError:
        raise
    except Exception as error:
        raise _failed(error, name) from error


def _named_function(module: ModuleType, name: str, target: str) -> Program:
    found = getattr(module, name, None)
    if not callable(found):
        names = [function.__name__ for function in _functions(module)]
        guess = checks.nearest(name, names)
        raise UserError(
            "P001",
            f'{target} has no function "{name}"; the functions are {checks.listing(names)}',
            fix=f"did you mean {target}:{guess}?" if guess else "write def name(flow): ...",
        )
    try:
        inspect.signature(found).bind(None)
    except TypeError as error:
        raise UserError(
            "P001",
            f"{target}:{name} cannot be called with a flow alone: {error}",
            where=_place_of(found),
            fix=f"def {name}(flow: ps.Flow) -> None: ...",
        ) from None
    program: Program = found
    return program


def _only_function(module: ModuleType, target: str) -> Program:
    candidates = [
        function for function in _functions(module) if _FLOW_PARAMETER in inspect.signature(function).parameters
    ]
    if len(candidates) != 1:
        names = [function.__name__ for function in candidates or _functions(module)]
        problem = "several functions with a parameter `flow`" if candidates else "no function with a parameter `flow`"
        raise UserError(
            "P001",
            f"{target} has {problem}; the functions are {checks.listing(names)}",
            fix=f"say which: {target}:{names[0] if names else 'function'}",
        )
    return _named_function(module, candidates[0].__name__, target)


def _functions(module: ModuleType) -> list[Callable[..., object]]:
    """Those defined in the module itself, as written."""
    return [
        value
        for value in vars(module).values()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not value.__name__.startswith("_")
    ]


def _failed(error: BaseException, what: str, *, folder: Path | None = None) -> UserError:
    """A mistake in the user's file, at the line where it is."""
    if isinstance(error, SyntaxError) and error.filename:
        where = places.render(error.filename, error.lineno or 0)
    else:
        where = places.innermost(error.__traceback__, folder=folder) or what
    fix = None
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        fix = f"add it to the requirements, or: pip install {package}"
    elif isinstance(error, SystemExit):
        fix = 'put what the script does by itself under if __name__ == "__main__":'
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return UserError("P001", f"{type(error).__name__}: {message}", where=where, fix=fix)


def _folder_of(function: Program) -> Path | None:
    code = getattr(function, "__code__", None)
    return Path(code.co_filename).parent if code is not None else None


def _place_of(function: Callable[..., object]) -> str | None:
    code = getattr(function, "__code__", None)
    return places.render(code.co_filename, code.co_firstlineno) if code is not None else None

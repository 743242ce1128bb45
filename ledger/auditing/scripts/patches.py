"""Methods of classes, and functions of modules, that are others while a script runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import update_wrapper, wraps
from types import ModuleType
from typing import Any

_own = ContextVar("_own", default=False)


class Patches:
    """Methods and functions that a script gets instead of those of an owner, until ``undo``."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, other: Callable[..., Any]) -> None:
        """Have ``other(method, self, *args, **kwargs)`` called for a method of a class, or
        ``other(function, *args, **kwargs)`` for a function of a module.

        ``method`` is what the owner had. Calls that come from the audit itself, in a block of
        ``own_calls``, and calls within the method are not intercepted. A method that the class
        does not have is left out: it belongs to another version of Spark.
        """
        method = owner.__dict__.get(name)
        if method is None:
            return

        function = method.__func__ if isinstance(method, staticmethod) else method

        @wraps(function)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            if _own.get():
                return function(*args, **kwargs)
            with own_calls():
                return other(function, *args, **kwargs)

        new: Any = replaced
        if isinstance(owner, ModuleType):
            new = _Function(owner.__name__, replaced, function)
        elif isinstance(method, staticmethod):
            new = staticmethod(replaced)
        self.put(owner, name, method, new)

    def replace_property(self, owner: type, name: str, other: Callable[[Any], Any]) -> None:
        """Have ``other(self)`` called for a property."""
        before = owner.__dict__.get(name)
        if before is None:
            return

        def replaced(self: Any) -> Any:
            return before.__get__(self, owner) if _own.get() else other(self)

        self.put(owner, name, before, property(replaced))

    def put(self, owner: Any, name: str, before: Any, new: Any) -> None:
        """Give an owner another attribute in place of what it had before."""
        self._replaced.append((owner, name, before))
        setattr(owner, name, new)

    def undo(self) -> None:
        """Give all owners back what they had."""
        while self._replaced:
            owner, name, before = self._replaced.pop()
            setattr(owner, name, before)


class _Function:
    """A function of a module as the script gets it. Pickled by its name, it is the module's own
    function.
    """

    def __init__(
        self, module: str, replaced: Callable[..., Any], function: Callable[..., Any]
    ) -> None:
        update_wrapper(self, replaced)
        self.__module__ = module
        self._replaced, self._function = replaced, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._replaced(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return self is other or self._function == other

    def __hash__(self) -> int:  # as of os.supports_follow_symlinks
        return hash(self._function)

    def __reduce__(self) -> str:
        return self.__name__  # type: ignore[attr-defined,no-any-return]


@contextmanager
def own_calls(is_own: bool = True) -> Iterator[None]:
    """Let the calls in the block through, because they are the audit's own.

    ``is_own``: False: intercept them again, because they are the script's.
    """
    token = _own.set(is_own)
    try:
        yield
    finally:
        _own.reset(token)

"""Replace a function of torch by a wrapper that looks and pickles like the original.

All torch probes use it. A wrapper calls the original exactly once with the arguments it got; it lets the exceptions of
the original through, and none of its own. A ``loss`` row names what could not be replaced.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from stashtrace.probes import recorder

#: Attribute of a wrapper that holds the original.
MARK = "__stashtrace_original__"


def replace(collector: str, owner: Any, name: str, make: Callable[[Any], Any], *, needed: bool = True) -> bool:
    """Put ``make(original)`` in the place of ``owner.name``, unless a wrapper is there already.

    ``collector``: named in the loss row if this torch has no such attribute. ``owner``: holds the attribute; inherited
    attributes count as absent. ``name``: name of the attribute. ``make``: takes the original, returns the wrapper.
    ``needed``: whether a missing attribute is reported. Returns whether the wrapper is in place.
    """
    label = f"{getattr(owner, '__name__', owner)}.{name}"
    original = vars(owner).get(name)
    if original is None:
        if needed:
            recorder.unavailable(collector, "not_patched", f"this torch has no {label}")
        return False
    if hasattr(original, MARK):
        return True
    try:
        wrapper = make(original)
        if not isinstance(original, (staticmethod, classmethod)):
            functools.update_wrapper(look_like(wrapper, original), original)
        setattr(wrapper, MARK, original)
        setattr(owner, name, wrapper)
    except Exception as error:
        recorder.unavailable(collector, "not_patched", f"{label}: {error!r}")
        return False
    return True


def bind(signature: inspect.Signature, *args: Any, **kwargs: Any) -> inspect.BoundArguments | None:
    """Return the arguments of a call by name, None if the function does not take them."""
    try:
        return signature.bind_partial(*args, **kwargs)
    except TypeError:
        return None


def look_like(wrapper: Any, original: Any) -> Any:
    """Give the wrapper's code the file and name of the original's, if that is Python, and return the wrapper.

    Dynamo decides by them which frames it compiles, and must decide as it does without us: it would compile a wrapper
    of another file in place of what that calls. And a warning that torch attributes to its caller names torch, not us.
    """
    code = getattr(original, "__code__", None)
    if code is None:
        return wrapper
    wrapper.__code__ = wrapper.__code__.replace(
        co_filename=code.co_filename, co_name=code.co_name, co_firstlineno=code.co_firstlineno
    )
    return wrapper

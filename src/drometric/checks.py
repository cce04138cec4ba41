"""Arguments that are numbers or names, checked once, with errors that say what to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeGuard, TypeVar

import numpy as np
from torch import Tensor

Choice = TypeVar("Choice", bound=str)


def number(
    name: str,
    value: float,
    *,
    above: float | None = None,
    at_least: float | None = None,
    infinite: bool = False,
) -> float:
    """`value` as a float, or a `ValueError` that names the argument and its range.

    >>> number("gamma", -1, at_least=0.0)
    Traceback (most recent call last):
    ...
    ValueError: gamma must be a finite number of at least 0.0; got -1
    """
    wanted = "a number" if infinite else "a finite number"
    if above is not None:
        wanted += f" above {above}"
    if at_least is not None:
        wanted += f" of at least {at_least}"
    result = math.nan
    if isinstance(value, float | np.floating) or (_is_int(value) and abs(value) < 2**63):
        result = float(value)
    good = not math.isnan(result) and (infinite or math.isfinite(result))
    good = good and (above is None or result > above)
    good = good and (at_least is None or result >= at_least)
    if not good:
        raise ValueError(f"{name} must be {wanted}; got {value!r}")
    return result


def whole(name: str, value: int) -> int:
    """`value` as an int of at least 1, or a `ValueError` that names the argument."""
    if not _is_int(value) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1; got {value!r}")
    return int(value)


def one_of(name: str, value: Choice, choices: Sequence[Choice]) -> Choice:
    """`value`, if it is one of `choices`, or a `ValueError` that lists them."""
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {listed}; got {value!r}")
    return value


def switch(name: str, value: bool) -> bool:
    """`value`, if it is True or False, or a `ValueError`."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False; got {value!r}")
    return value


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def shapes(answer: object) -> str:
    """What a user's object answered, for comparison and for errors: "(3,), (3,)" or a type."""
    if isinstance(answer, tuple) and all(isinstance(part, Tensor) for part in answer):
        return ", ".join(str(tuple(part.shape)) for part in answer)
    return f"a {type(answer).__name__}"

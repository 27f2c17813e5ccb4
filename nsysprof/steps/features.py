"""Find numbers in step names (such as token counts and batch sizes), and fit the step times to these numbers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nsysprof.core.arrays import AnyInts, Floats, Ints
from nsysprof.statistics.dependence import dependence
from nsysprof.statistics.distributions import t_quantile

_NUMBER = re.compile(r"\d+")
_LEVEL = 0.95
MIN_EXPLAINED = 0.25  # of the absolute deviations: a fit that explains less says nothing
_LEAST_VALUES, _LEAST_STEPS = 3, 12
_MOST_DIGITS = 15  # beyond which a number is an id, and no float holds it
_ROUNDS, _HUBER = 20, 1.345


@dataclass(frozen=True)
class Feature:
    """The time that a step takes longer per unit of a number in its name (``ns``, with a 95 % interval), and the word
    before the number.
    """

    name: str
    ns: float
    low_ns: float
    high_ns: float


@dataclass(frozen=True)
class Fit:
    """A linear fit of step times: a fixed part (``fixed_ns``), the ``features``, and the ``fitted`` time of each step
    in ns.

    ``explained``: the share of the absolute deviations from the median that the fit explains (Koenker and Machado,
    1999).
    """

    features: tuple[Feature, ...]
    fixed_ns: float
    explained: float
    fitted: Floats


def without_numbers(name: str) -> str:
    """Return the step name with a star instead of each number."""
    return _NUMBER.sub("*", name)


def fit_features(names: Sequence[str], code: AnyInts, span: Ints) -> Fit | None:
    """Fit step times to the numbers in step names; returns None if the numbers explain little.

    ``code`` has, for each step in time order, the index of its name in ``names``. Numbers are used only if the names
    are otherwise equal. A number that never decreases and grows with nearly every step is an index, not a feature.
    """
    texts = [names[each] for each in np.unique(code).tolist()]
    if len(span) < _LEAST_STEPS or len(texts) < _LEAST_VALUES or len({without_numbers(each) for each in texts}) > 1:
        return None
    found = {each: [int(digits) for digits in _NUMBER.findall(names[each])] for each in np.unique(code).tolist()}
    if any(len(str(value)) > _MOST_DIGITS for values in found.values() for value in values):
        return None
    values = np.array([found[each] for each in code.tolist()], np.float64)
    words = [re.sub(r"[\W_]+", " ", part).strip() or "number" for part in _NUMBER.split(texts[0])]
    kept: list[int] = []
    for at in range(values.shape[1]):  # a number that others add up to has no price of its own
        columns = np.column_stack([np.ones(len(values)), values[:, [*kept, at]]])
        columns /= np.abs(columns).max(axis=0).clip(1)
        if _is_feature(values[:, at]) and np.linalg.matrix_rank(columns) == columns.shape[1]:
            kept.append(at)
    while kept:
        fixed, slopes, errors, fitted = _robust_line(values[:, kept], span)
        sure = np.abs(slopes) > errors
        if sure.all():
            break
        kept.remove(kept[int(np.argmin(np.abs(slopes) / errors))])
    if not kept:
        return None
    total = np.abs(span - np.median(span)).sum()
    explained = float(1 - np.abs(span - fitted).sum() / total) if total else 0.0
    if explained < MIN_EXPLAINED or fitted.min() <= 0:
        return None
    rows = zip(kept, slopes.tolist(), errors.tolist(), strict=True)
    return Fit(tuple(Feature(words[at], by, by - off, by + off) for at, by, off in rows), fixed, explained, fitted)


def _is_feature(values: Floats) -> bool:
    """Whether a number has several values, and is no count of the steps."""
    grows = np.diff(values)
    counts = bool((grows >= 0).all() and (grows > 0).mean() > 0.9)
    return len(np.unique(values)) >= _LEAST_VALUES and not counts


def _robust_line(values: Floats, span: Ints) -> tuple[float, Floats, Floats, Floats]:
    """Huber's line with errors as parts of the time: what is fixed, the slopes, half their intervals, and all it fits.

    Intervals are those of weighted least squares, wider by as much as steps depend on those before them.
    """
    y, columns = span.astype(np.float64), np.column_stack([np.ones(len(span)), values])
    scale = np.maximum(np.abs(columns).max(axis=0), 1.0)
    fitted, weight = np.full(len(y), np.median(y)), np.ones(len(y))
    for _ in range(_ROUNDS):
        size = np.maximum(fitted, np.median(y) / 100)
        root = np.sqrt(weight) / size
        part, *_ = np.linalg.lstsq(columns / scale * root[:, None], y * root, rcond=None)
        fitted = columns / scale @ part
        left = (y - fitted) / np.maximum(fitted, np.median(y) / 100)
        spread = max(float(np.median(np.abs(left))) / 0.6745, 1e-9)
        weight = np.minimum(1.0, _HUBER * spread / np.maximum(np.abs(left), 1e-30))
    normal = np.linalg.pinv((columns / scale * root[:, None]).T @ (columns / scale * root[:, None]))
    worth = max(dependence(left).effective, columns.shape[1] + 1.0)
    variance = (weight * left**2).sum() / weight.sum() * len(y) / worth
    half = t_quantile(_LEVEL, worth - columns.shape[1]) * np.sqrt(np.maximum(np.diag(normal) * variance, 1e-30))
    return float(part[0]), part[1:] / scale[1:], half[1:] / scale[1:], fitted

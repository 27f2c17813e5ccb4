"""How far off forecasts of each kind of question were: the published record."""

from collections.abc import Sequence

# Forecasts of a kind that were compared with outcomes: the median and the worst error, the error that nine of ten stay
# below, as parts of the outcome, and how many. Nothing is in here that analysis/forecasts has not measured.
PUBLISHED: dict[str, tuple[float, float, float, int]] = {
    "graph": (0.0109, 0.124, 0.1074, 17),
    "swap": (0.0339, 0.3401, 0.2537, 29),
    "remove": (0.0405, 0.6582, 0.6637, 5),
    "gpu-delay": (0.0101, 0.1249, 0.1249, 8),
    "delay": (0.0165, 0.0957, 0.0957, 8),
    "drop-sync": (0.0216, 0.1007, 0.1113, 4),
    "kernel": (0.0693, 0.08, 0.1005, 3),
    "async-copies": (0.0824, 0.1423, 0.2184, 2),
    "no-late-peer": (0.161, 0.2463, 0.3781, 2),
}


def published_error(kinds: Sequence[str]) -> tuple[str, float]:
    """How far off forecasts of these kinds were, in words, and the error that nine of ten stay below, 0 if unknown.

    Of several kinds the one that was off most.
    """
    known = [PUBLISHED[kind] for kind in kinds if kind in PUBLISHED]
    if len(known) < len(kinds) or not known:
        return "no published record for this kind of question yet", 0.0
    median, worst, most, count = max(known, key=lambda each: each[2])
    return (
        f"forecasts of this kind were off by {median:.1%} (median), {worst:.1%} (worst), n = {count}".replace(
            "%", " %"
        ),
        most,
    )

"""Format numbers with units: three digits, or all digits of a longer integer part.

Formats are only for display: files have plain integers.
"""

import math

_TIME = ((1, "ns"), (10**3, "µs"), (10**6, "ms"), (10**9, "s"), (60 * 10**9, "min"))
_BYTES = ((1, "B"), (2**10, "KiB"), (2**20, "MiB"), (2**30, "GiB"), (2**40, "TiB"), (2**50, "PiB"))
_BANDWIDTH = ((1, "B"), (10**3, "kB"), (10**6, "MB"), (10**9, "GB"), (10**12, "TB"))
_COUNT = ((10**6, "M"), (10**9, "G"), (10**12, "T"))
# From here on `s` would need more digits than minutes do.
_MINUTES_FROM = 600 * 10**9


def format_ns(ns: float) -> str:
    """Format a duration: `830 ns`, `2.42 µs`, `56.5 ms`, `1.20 s`, `12.5 min`; `-` if not finite."""
    return _scaled(ns, _time_units(ns))


def scale_ns(max_ns: float) -> tuple[int, str]:
    """Return divisor and unit for a chart axis up to `max_ns`: `(1_000_000, "ms")` for 56,000,000."""
    return _unit(max_ns, _time_units(max_ns))


def scale_bytes(max_bytes: float) -> tuple[int, str]:
    """Return divisor and unit for an axis of bytes up to `max_bytes`: `(1_048_576, "MiB")` for 64 MiB."""
    return _unit(max_bytes, _BYTES)


def format_bytes(size: float) -> str:
    """Format a size in powers of 1,024: `512 B`, `1.50 KiB`, `4.87 GiB`."""
    return _scaled(size, _BYTES)


def format_bandwidth(bytes_per_s: float) -> str:
    """Format a memory bandwidth in powers of 1,000, as in data sheets: `4.81 TB/s`, `896 GB/s`."""
    return f"{_scaled(bytes_per_s, _BANDWIDTH)}/s"


def format_count(count: int) -> str:
    """Format a count: exact with separators below a million (`1,234`), then `1.23 M`, `4.56 G`."""
    return f"{count:,}" if _nearest(abs(count), 1) < 10**6 else _scaled(count, _COUNT)


def format_share(share: float) -> str:
    """Format a fraction of 1 as percent: `44 %`, `4.4 %`, `<0.1 %`, `100 %`; never rounded up to 100 nor down to 0.

    `-` for NaN (a share of nothing).
    """
    if math.isnan(share):
        return "-"
    sign, percent = "-" if share < 0 else "", abs(share) * 100
    if percent == 0:
        return "0 %"
    if percent < 0.1:
        return f"{sign}<0.1 %"
    if 99.5 <= percent < 100:
        return f"{sign}>99 %"
    return f"{sign}{percent:.1f} %" if percent < 9.95 else f"{sign}{percent:,.0f} %"


def format_ratio(ratio: float) -> str:
    """Format a ratio: `24.2x`, `1.05x`, `0.95x`, `0.0042x`, `1,200x`; `-` if not finite."""
    if not math.isfinite(ratio):
        return "-"
    # Two significant digits where two decimals would show less.
    decimals = 1 - math.floor(math.log10(abs(ratio))) if 0 < abs(ratio) < 0.1 else _decimals(ratio)
    return f"{ratio:,.{decimals}f}x"


def _time_units(ns: float) -> tuple[tuple[int, str], ...]:
    return _TIME if abs(ns) >= _MINUTES_FROM else _TIME[:-1]


def _scaled(value: float, units: tuple[tuple[int, str], ...]) -> str:
    if not math.isfinite(value):
        return "-"
    divisor, unit = _unit(value, units)
    if divisor == 1:
        return f"{round(value):,} {unit}"
    return f"{value / divisor:,.{_decimals(value / divisor)}f} {unit}"


def _unit(value: float, units: tuple[tuple[int, str], ...]) -> tuple[int, str]:
    """Choose the largest unit in which the printed value is at least 1; the first unit for smaller values."""
    chosen = units[0]
    for (divisor, name), (smaller, _) in zip(units[1:], units[:-1], strict=True):
        # 999.96 µs prints as 1.00 ms, not as 1,000 µs: compare what is printed in the smaller unit.
        if _nearest(abs(value), smaller) * smaller >= divisor:
            chosen = (divisor, name)
    return chosen


def _nearest(value: float, divisor: int) -> float:
    """Round `value / divisor` as its digits will show it."""
    scaled = value / divisor
    return round(scaled, 0 if divisor == 1 else _decimals(scaled))


def _decimals(value: float) -> int:
    """Return how many decimals make three digits in all."""
    value = abs(value)
    return 0 if value >= 99.95 else 1 if value >= 9.995 else 2

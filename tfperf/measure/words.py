"""Durations and ratios as a person would say them."""

from tfperf.errors import escape_unprintable
from tfperf.measure.statistics import Interval

__all__ = ["escape_unprintable", "format_bytes", "format_interval", "format_ratio", "format_seconds", "plain_ratio"]


def format_seconds(seconds: float) -> str:
    """A duration in the unit a person would use, with four significant digits: '37.12 ms'."""
    unit, size = _unit(seconds)
    return f"{seconds / size:.4g} {unit}"


def format_interval(interval: Interval) -> str:
    """A duration with its interval, in one unit: '37.12 ms [36.9, 37.4]'."""
    _, size = _unit(interval.estimate)
    return f"{format_seconds(interval.estimate)} [{interval.low / size:.4g}, {interval.high / size:.4g}]"


def _unit(seconds: float) -> tuple[str, float]:
    """The unit in which a duration is at least 1, and its seconds."""
    units = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))
    return next(((unit, size) for unit, size in units if abs(seconds) >= size), ("ns", 1e-9))


def format_ratio(interval: Interval) -> str:
    """A ratio with its interval: '4.71x [4.65, 4.78]'."""
    estimate, low, high = (plain_ratio(value) for value in interval)
    return f"{estimate}x [{low}, {high}]"


def plain_ratio(ratio: float) -> str:
    """Three decimals near 1, where they decide, and three digits or whole numbers far from it."""
    if 0.8 < ratio < 1.25:
        return f"{ratio:.3f}"
    return f"{ratio:.3g}" if ratio < 100 else f"{ratio:.0f}"


def format_bytes(size: float) -> str:
    """A size in powers of 1024: '64.2 MiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.4g} {unit}"

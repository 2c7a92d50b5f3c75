"""Links between workers: what a message costs to start, what each of its bytes costs, and how both are measured."""

import itertools
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from tfperf.errors import TfperfError
from tfperf.measure.clock import Clock, wall_clock

__all__ = ["SIZES", "Link", "LinkFit", "fit_link", "sweep"]

SIZES = tuple(2**power for power in range(10, 29))
"""Bytes of the messages of a sweep: 1 KiB to 256 MiB."""

BREAKS = (2**16, 2**20)
"""Bytes near which libraries change to another protocol, and memory takes the place of caches."""

NEAR = 4
"""A break point lies within this factor of one of them."""

FEWEST_IN_A_PIECE = 3
"""Sizes; two would fit any line."""

FINEST_ERROR = 0.005
"""Relative error below which a fit is as good as the measurement, so that a break point gains nothing."""

RESAMPLES = 300
"""Fits to sizes and rounds drawn again, from which the intervals are taken."""

INTERVAL = (0.025, 0.975)
"""Quantiles of these at which the intervals end: 95 % of the fits lie within."""

BITS = {"Tbps": 1e12 / 8, "Gbps": 1e9 / 8, "Mbps": 1e6 / 8, "Kbps": 1e3 / 8}
"""Bytes/s of each unit that counts bits."""

BANDWIDTHS = BITS | {"MB/s": 1e6, "GB/s": 1e9, "GiB/s": 2.0**30}
"""Bytes/s of each unit."""

TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True)
class Link:
    """A message of `size` bytes takes `latency + size / bandwidth` seconds.

    Attributes:
        latency: seconds for each message, however small (alpha).
        bandwidth: bytes/s (the inverse of beta); `math.inf` where bytes cost nothing.

    Source: Hockney, The communication challenge for MPP, Parallel Computing 20 (1994).
    """

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        """Refuse what is no link."""
        if not (0 <= self.latency < math.inf and self.bandwidth > 0):
            raise ValueError(f"expected a latency of at least 0 s and a bandwidth above 0 bytes/s. Received: {self!r}")

    def __str__(self) -> str:
        """Give the words that `parse` reads: '25Gbps,15us'."""
        return f"{_words(self.bandwidth, BITS)},{_words(self.latency, TIMES)}"

    def seconds(self, size: float) -> float:
        """Return the seconds of one message.

        Args:
            size: bytes.
        """
        return self.latency + size / self.bandwidth

    @classmethod
    def parse(cls, text: str) -> "Link":
        """Read a link as the command line has it: '25Gbps,15us', '3.1GB/s,800ns'.

        Args:
            text: a bandwidth in Kbps, Mbps, Gbps, Tbps (bits) or MB/s, GB/s, GiB/s (bytes), a comma, a latency in
                ns, us, ms or s.

        Raises:
            TfperfError: it is anything else.
        """
        bandwidth, _, latency = text.partition(",")
        try:
            return cls(_value(latency, TIMES), _value(bandwidth, BANDWIDTHS))
        except ValueError as error:
            raise TfperfError(
                f"expected a link as 25Gbps,15us, with a bandwidth in {', '.join(BANDWIDTHS)} and a latency in "
                f"{', '.join(TIMES)}. Received: {text!r}"
            ) from error


@dataclass(frozen=True)
class LinkFit:
    """The link that measured times tell of, and how far they allow others.

    Attributes:
        link: the one latency and bandwidth for all sizes.
        low, high: links at the ends of the 95 % intervals of both: `low.seconds(size)` is at most, and
            `high.seconds(size)` at least, what `link.seconds(size)` is.
        pieces: a link for each range of sizes, with the last size in bytes that it holds for; one where break points
            do not pay.
    """

    link: Link
    low: Link
    high: Link
    pieces: tuple[tuple[float, Link], ...]

    @property
    def breaks(self) -> tuple[float, ...]:
        """The last size in bytes of each piece but the last."""
        return tuple(last for last, _ in self.pieces[:-1])

    def seconds(self, size: float) -> float:
        """Return the seconds of one message, by the piece that its size falls into.

        Args:
            size: bytes.
        """
        return next(link for last, link in self.pieces if size <= last).seconds(size)


def sweep(
    function: Callable[[int], object],
    sizes: Sequence[int] = SIZES,
    repeats: int = 20,
    *,
    before: Callable[[], object] | None = None,
    clock: Clock = wall_clock,
) -> NDArray[np.float64]:
    """Time messages of all sizes in turns, so that what disturbs a round disturbs all sizes alike.

    Each size is called once before. The order within a round is drawn at random, and the same in every process, as
    calls that several processes make together need.

    Args:
        function: called with a size in bytes; returns when the message has arrived.
        sizes: bytes.
        repeats: rounds.
        before: called before each message, outside its time: a barrier, where several processes send together.
        clock: seconds.

    Returns:
        Seconds, shape (repeats, sizes), as `fit_link` takes them.
    """
    for size in sizes:
        function(size)
    order, seconds = random.Random(0), np.empty((repeats, len(sizes)))
    for row in seconds:
        for column in order.sample(range(len(sizes)), len(sizes)):
            if before:
                before()
            start = clock()
            function(sizes[column])
            row[column] = clock() - start
    return seconds


def fit_link(sizes: ArrayLike, seconds: ArrayLike) -> LinkFit:
    """Fit a latency and a bandwidth, both not negative, to the times of messages.

    Least squares of the relative errors: each size counts alike, where absolute errors would leave the latency to the
    noise of the largest. Several rounds are fitted by their medians, which a few slow calls do not move. A break point
    is set where it halves the error.

    Args:
        sizes: bytes, shape (sizes,), at least 3 different ones.
        seconds: above 0, shape (sizes,) or (repeats, sizes).

    Raises:
        ValueError: the arguments are anything else.

    Source: for the pieces, Hoefler, Schneider and Lumsdaine, LogGOPSim, HPDC 2010; for the intervals, Efron and
    Tibshirani, An Introduction to the Bootstrap, section 9.5.
    """
    x, samples = np.asarray(sizes, np.float64), np.atleast_2d(np.asarray(seconds, np.float64))
    if x.ndim != 1 or len(np.unique(x)) < 3 or x.min() < 0 or samples.shape != (len(samples), len(x)):
        raise ValueError(
            "expected at least 3 different sizes, and seconds for each of them. "
            f"Received: shapes {x.shape} and {np.shape(seconds)}, {len(np.unique(x))} different sizes"
        )
    if not (np.isfinite(samples) & (samples > 0)).all():
        raise ValueError(f"expected finite seconds above 0. Received: {samples.min()} to {samples.max()}")
    order = np.argsort(x, kind="stable")
    x, samples = x[order], samples[:, order]
    medians = np.median(samples, axis=0)
    link = _fitted(x, medians)
    return LinkFit(link, *_bounds(link, x, samples), _pieces(x, medians))


def _fitted(sizes: NDArray[np.float64], seconds: NDArray[np.float64]) -> Link:
    """The link of the least relative errors."""
    columns = np.stack([np.ones_like(sizes), sizes], axis=1) / seconds[:, np.newaxis]  # (sizes, 2)
    scale = np.maximum(np.linalg.norm(columns, axis=0), np.finfo(float).tiny)
    latency, per_byte = nnls(columns / scale, np.ones_like(seconds))[0] / scale
    return _link(latency, per_byte)


def _link(latency: float, per_byte: float) -> Link:
    return Link(float(latency), 1 / float(per_byte) if per_byte > 0 else math.inf)


def _pieces(sizes: NDArray[np.float64], seconds: NDArray[np.float64]) -> tuple[tuple[float, Link], ...]:
    """Links of the ranges of sizes; a break point must halve the error."""

    def links(ends: tuple[int, ...]) -> list[Link]:
        parts = zip(np.split(sizes, ends), np.split(seconds, ends), strict=True)
        return [_fitted(some, theirs) for some, theirs in parts]

    def error(ends: tuple[int, ...]) -> float:
        parts = zip(links(ends), np.split(sizes, ends), strict=True)
        errors = np.concatenate([[link.seconds(size) for size in some] for link, some in parts]) / seconds - 1
        freedom = max(1, len(sizes) - 2 * (1 + len(ends)))
        return float(max(FINEST_ERROR, math.sqrt(errors @ errors / freedom)) * 2 ** len(ends))

    best = min(_possible_ends(sizes), key=error)
    return tuple(zip([*(float(sizes[end - 1]) for end in best), math.inf], links(best), strict=True))


def _possible_ends(sizes: NDArray[np.float64]) -> Iterator[tuple[int, ...]]:
    """Where pieces may end: nowhere, near one of the two sizes, near both; few pieces first."""
    near = [[end for end in range(1, len(sizes)) if size / NEAR <= sizes[end - 1] <= size * NEAR] for size in BREAKS]
    for ends in ((), *((end,) for end in (*near[0], *near[1])), *itertools.product(*near)):
        if (np.diff((0, *ends, len(sizes))) >= FEWEST_IN_A_PIECE).all():
            yield ends


def _bounds(link: Link, sizes: NDArray[np.float64], samples: NDArray[np.float64]) -> tuple[Link, Link]:
    """Links at the low and the high end of both constants, of fits to sizes and rounds that are drawn again.

    With the sizes drawn again it is in the interval, too, that no line goes through all of them.
    """
    draw, (repeats, count), fits = np.random.default_rng(0), samples.shape, [link]
    for _ in range(RESAMPLES):
        rows, columns = draw.integers(repeats, size=repeats), draw.integers(count, size=count)
        fits.append(_fitted(sizes[columns], np.median(samples[np.ix_(rows, columns)], axis=0)))
    constants = np.array([(fit.latency, 1 / fit.bandwidth) for fit in fits])  # (fits, 2)
    low, high = np.quantile(constants, INTERVAL, axis=0)
    return _link(*np.minimum(low, constants[0])), _link(*np.maximum(high, constants[0]))


def _words(value: float, units: dict[str, float]) -> str:
    """A quantity in the largest of the units that leaves it at least 1: '25Gbps'."""
    unit, size = next(((unit, size) for unit, size in units.items() if value >= size), list(units.items())[-1])
    return f"{value / size:.6g}{unit}"


def _value(words: str, units: dict[str, float]) -> float:
    """The quantity that the words say.

    Raises:
        ValueError: they say none in these units.
    """
    found = re.fullmatch(r"\s*(inf|[\d.]+(?:e[+-]?\d+)?)\s*([a-zA-Z/]+)\s*", words, re.ASCII)
    if not found or found[2] not in units:
        raise ValueError(f"expected a number and one of {', '.join(units)}. Received: {words!r}")
    return float(found[1]) * units[found[2]]

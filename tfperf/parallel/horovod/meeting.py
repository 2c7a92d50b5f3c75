"""Points at which all ranks meet and tell each other where they are, so that none waits for ever."""

from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd

from tfperf.errors import HorovodError
from tfperf.parallel.horovod.digests import check_equal, differing_ranks
from tfperf.parallel.horovod.exchanges import join
from tfperf.parallel.horovod.gathering import gather

__all__ = ["check_finished_alike", "meet", "name_ranks"]


def meet(where: str, number: int) -> list[int]:
    """Wait until every rank is here, and get the number of each, by rank.

    A rank that waits here takes part in the gradient exchanges of those still on their way, with zeros.

    Args:
        where: what this meeting is about, in words.
        number: this rank's, a count of batches or steps.

    Raises:
        HorovodError: ranks came to different meetings; names them.
    """
    if hvd.size() == 1:
        return [number]
    join()
    told = gather([where, number])
    places = [place for place, _ in told]
    odd = differing_ranks(dict(enumerate(places)))
    if odd:
        raise HorovodError(
            f"expected all ranks {places[_first_other(odd)]}, {name_ranks(odd)} {places[odd[0]]}: "
            "train the same number of epochs on every rank, and stop early on averaged metrics only"
        )
    return [number for _, number in told]


def check_finished_alike(steps: int, weights: Sequence[Any]) -> None:
    """Compare the steps taken and the weights of all ranks at the end of training.

    Raises:
        HorovodError: they differ; names the ranks.
    """
    taken = meet("at the end of training", steps)
    odd = differing_ranks(dict(enumerate(taken)))
    if odd:
        most = taken[_first_other(odd)]
        raise HorovodError(
            f"expected {most} steps on every rank, {name_ranks(odd)} took {taken[odd[0]]}: "
            "give every rank as many batches, with hvd.shard, or add hvd.callbacks.GuardCallback"
        )
    if hvd.size() > 1:
        check_equal(weights)


def name_ranks(ranks: Sequence[int]) -> str:
    """The ranks in words: 'rank 1', 'ranks 1, 3'."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _first_other(odd: Sequence[int]) -> int:
    """The lowest rank that is not among `odd`."""
    return next(rank for rank in range(hvd.size()) if rank not in odd)

"""What the ranks of a training are called in messages."""

from collections.abc import Iterable

__all__ = ["name_rank", "name_ranks"]


def name_rank(rank: int, place: str | None = None) -> str:
    """One rank, and where it runs if that is told: 'rank 1', 'rank 1 on node2'."""
    return f"rank {rank} on {place}" if place else f"rank {rank}"


def name_ranks(ranks: Iterable[int]) -> str:
    """Ranks in words: 'rank 1', 'ranks 1, 3'."""
    first, *others = ranks
    return f"ranks {', '.join(map(str, (first, *others)))}" if others else name_rank(first)

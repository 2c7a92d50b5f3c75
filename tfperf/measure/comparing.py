"""Which is faster, and by how much: candidates measured side by side, interleaved, in one run."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfperf.measure.candidates import Candidate, plan_turns
from tfperf.measure.clock import Clock, Synchronizer, wall_clock
from tfperf.measure.comparison import FEWEST_ROUNDS, MARGIN, Comparison
from tfperf.measure.environment import Environment, Watch
from tfperf.measure.measurement import Doubt
from tfperf.measure.rounds import Limits, Rounds
from tfperf.measure.sampling import WARM_UP_SECONDS, Progress, Sampler, check_limits

__all__ = ["compare"]

TIME_LIMIT = 20.0
"""Seconds for all candidates together; their first calls come before and are not counted."""

MIN_ROUNDS = 20
"""Rounds before the ratios are believed, unless the time is up."""

TURN_SECONDS = 0.005
"""What a candidate measures before the next one's turn: long beside what changing over costs."""


def compare(
    candidates: Mapping[str, Callable[..., Any]],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    margin: float = MARGIN,
    time_limit: float = TIME_LIMIT,
    min_rounds: int = MIN_ROUNDS,
    turn_seconds: float = TURN_SECONDS,
    rest_after: int | None = None,
    clock: Clock = wall_clock,
    synchronize: Synchronizer | None = None,
    seed: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Comparison:
    """Measure candidates side by side and say, for each pair, which is faster and by how much.

    Each round gives every candidate a turn, in random order. The turns of one round make pairs, so
    that what slows the machine for a while slows both sides of each ratio. Sampling ends when every
    ratio is known to half the margin (a large ratio: to a fiftieth of its distance from 1), when more
    rounds no longer help, or when the time is up. Work so slow that the time would not do for a verdict on it has no
    more turns once it has taken its equal share of the time, so that the others have theirs.

    Args:
        candidates: name -> function; each is called with the same `args` and `kwargs`. One that `TimesItself`, as
            its work is done in another process, is asked for its seconds.
        margin: times that differ by less than this share count as equal.
        time_limit: seconds for all candidates together; their first calls come before.
        min_rounds: rounds to take at least, unless the time is up or `rest_after` is given.
        turn_seconds: of measuring, before the next candidate's turn; raise it where changing over costs more.
        rest_after: rounds after which a candidate has no more turns once its ratio to the fastest is known, so that
            those which may be the fastest have the rest of the time, and other ratios stay as they are; None: all have
            a turn in every round. The fewest rounds that tell anything may then take longer than the time limit.
        clock: returns seconds.
        synchronize: waits for the devices before each reading; None: found from what is loaded.
        seed: of the random order; None: another one each time.
        on_progress: called now and then, outside the samples.

    Raises:
        MeasurementError: the clock does not move.
        ValueError: fewer than two candidates, or a limit that is not positive.
    """
    check_limits(margin=margin, time_limit=time_limit, min_rounds=min_rounds, turn_seconds=turn_seconds)
    if len(candidates) < 2:
        raise ValueError(f"expected at least two candidates to compare. Received: {', '.join(candidates) or 'none'}")
    environment, watch, began = Environment.here(), Watch(), clock()
    warm_up_seconds = min(WARM_UP_SECONDS, time_limit / (4 * len(candidates)))
    compared = [
        Candidate(Sampler(name, function, args, kwargs, clock=clock, synchronize=synchronize), warm_up_seconds)
        for name, function in candidates.items()
    ]
    began += sum(one.sampler.first_call_seconds for one in compared)
    plan_turns(compared, turn_seconds)
    rounds = Rounds(compared, Limits(margin, time_limit, min_rounds, rest_after), random.Random(seed))
    while rounds.stopped is None:
        rounds.take(lambda: clock() - began, on_progress)
    conditions = watch.conditions()
    return Comparison(
        measurements=tuple(
            one.sampler.measurement(
                one.samples,
                dropped=rounds.dropped,
                samples_per_turn=one.length,
                precision=margin,
                stopped=rounds.stopped,
                environment=environment,
                conditions=conditions,
            )
            for one in compared
        ),
        ratios=tuple(rounds.ratios()),
        rounds=rounds.kept,
        margin=margin,
        stopped=rounds.stopped,
        doubts=_doubts(rounds.kept),
    )


def _doubts(rounds: int) -> tuple[Doubt, ...]:
    """What speaks against the comparison as a whole."""
    if rounds >= FEWEST_ROUNDS:
        return ()
    few = Doubt(
        name="few_rounds",
        words=f"only {rounds} rounds, fewer than {FEWEST_ROUNDS}",
        advice="there is no verdict; raise the time limit or compare smaller work",
    )
    return (few,)

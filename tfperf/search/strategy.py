"""The strategy of the search: its stages, and a table of each number that decides something, with what it rests on.

1. *Looks*: plans are measured alone, shortly. A question that admits few plans is tried in full. Otherwise one engine
   of each family of kernels comes first, with the threads that suited the probes; then the best of each family is
   changed, one part at a time, unless `Candidates.skip_reason` says why no such change can make it the best of all.
2. *Round*: the best looks in turns, in the same processes; then the best of them are changed further.
3. *Final*: the best few, and what users have, in turns until they are told apart.
4. *Confirmation*: the winner, its equals and the best default in turns, each in another process.
"""

from typing import NamedTuple

__all__ = ["THRESHOLDS", "Threshold"]


class Threshold(NamedTuple):
    """A number that decides something.

    Attributes:
        value: times, seconds, a share or a count, as `decides` says.
        decides: what it decides.
        evidence: what it rests on. "Recorded" are the searches in tests/search/recorded that tried every plan.
    """

    value: float
    decides: str
    evidence: str

    @property
    def number(self) -> int:
        """The value as a whole number."""
        return int(self.value)


# ------------------------------------------------------------ which plans are looked at

IN_FULL = Threshold(
    20,
    "a question that admits so many plans at most is tried in full but for what facts rule out, by no other threshold",
    "so many take half a minute; recorded, float32 alone: 29 looks of 39 plans in place of 10, for no better choice",
)
HOPELESS = Threshold(
    2.0,
    "a precision whose single rounding errs by more, as a multiple of the tolerance, is not tried",
    "errors of rounding average out a little over a sum, and no more",
)
LEADING = Threshold(
    1.1,
    "a plan of a family that takes at most so many times the best of all is changed as the best of its family is",
    "one look may be wrong by that: recorded looks and final rounds differ by 2 to 10 %",
)
LEADERS = Threshold(
    3,
    "so many plans of a family are changed, at most",
    "recorded: more than three so near to the best are settings of one",
)
BEHIND_THREADS = Threshold(
    2.0,
    "a family that takes more times the best of all, both unchanged, is not tried with other threads",
    "no number of the recorded threads made so much more of one family than of another",
)
BEHIND_BATCH = Threshold(
    3.0,
    "the same for other batch sizes",
    "a larger batch gains at most what a call costs beside its arithmetic, in all families alike",
)
BEHIND_PRECISION = Threshold(
    2.5,
    "the same for other precisions",
    "recorded: no precision made the best plan of a family that was further behind in float32",
)
GAIN_THREADS = Threshold(
    2.0,
    "a family that takes more times the best of all, both with all that was found, is not tried with other threads",
    "twice as many threads gain twice at most",
)
GAIN_BATCH = Threshold(3.0, "the same for other batch sizes", "as for those that are behind unchanged")
GAIN_TRANSFORMATIONS = Threshold(
    1.6, "the same for changes of the net", "recorded: constant weights gained 1.5 times at most, all others less"
)
GAIN_UNSEEN_PRECISION = Threshold(
    4.0,
    "what a precision may gain a family, in times, that was seen in no family yet",
    "the narrowest numbers have a quarter of float32's bytes",
)
GAIN_SEEN_PRECISION = Threshold(
    2.0,
    "times as much as one family gained by a precision, another may gain by it",
    "resnet18 with AMX: 8-bit integers made LiteRT 9.6 times as fast, OpenVINO 4.9 times",
)
GAIN_AT_LEAST = Threshold(
    1.5,
    "times that a precision may gain a family whatever it did for others",
    "a short look may be wrong by some of it, and other kernels make up the rest",
)
SLOWED = Threshold(
    1.2,
    "threads that slowed the probes by more are not tried with other families",
    "a net too small for so many threads in one engine was too small in all that were recorded",
)
GAINED = Threshold(
    1.1,
    "threads that gained the probes less are not tried with an engine whose plans are compiled",
    "each compilation takes as long as several looks",
)
SIBLING = Threshold(
    1.5,
    "an engine so many times slower than another of its family, or whose family is so far behind, is not tried further",
    "with the same kernels only the way of calling differs, by microseconds",
)

# ------------------------------------------------------------ which plans may win

UNDISTURBED = Threshold(
    10,
    "the percentile of its samples by which a plan is ranked before the final",
    "what disturbs one plan and not the next only adds to times",
)
NEAR = Threshold(
    2.2,
    "a plan whose look takes at most so many times the best one's may be the best, and is measured in turns",
    "a neighbour on the same core doubles what a look sees: beside the start of another plan, transformer in int8 with "
    "2 threads took 427 us, in turns 195, where its best rival took 253 and 252",
)
MOST_CONTENDERS = Threshold(8, "so many plans are measured in turns before the final, at most", "half a second each")
FINALISTS = Threshold(
    4, "so many plans come into the final; the defaults come on top", "more share its seconds, and none is told apart"
)
RIVAL = Threshold(
    1.1,
    "a finalist that takes at most so many times the winner is confirmed, too",
    "a process may be luckier than another by less, as with its place in memory",
)
CONFIRMED = Threshold(
    3,
    "so many plans are measured in another process before one of them is announced; the best default comes on top",
    "each costs a start",
)
EQUAL_SIZE = Threshold(0.01, "shares of size by which plans differ and times decide", "names and dates in the files")
EQUAL_MEMORY = Threshold(0.05, "the same for memory", "it differs that much from process to process")
FEWER = Threshold(
    0.8,
    "if two larger batches in a row give less than this share of the examples a second, still larger are not tried",
    "one alone may have been disturbed",
)

# ------------------------------------------------------------ how long is measured

LOOK_SECONDS = Threshold(0.4, "seconds of measuring for a first look, at most", "a start takes some seconds")
LOOK_PRECISION = Threshold(0.03, "half width of the interval at which a first look ends", "a fraction of NEAR")
ROUND_SECONDS = Threshold(
    0.5, "seconds for each plan in turns before the final", "as a look; their processes are there already"
)
FINAL_SECONDS = Threshold(
    5.0,
    "seconds of a final or confirmation of all its plans, if its rounds are short",
    "tells 1 % apart on a quiet machine",
)
FINAL_SHARE = Threshold(
    0.1,
    "share of the search's time so far that each of the two may take",
    "plans of similar speed take long to tell apart, and a search that took longer can afford it",
)
FINAL_ROUNDS = Threshold(25, "rounds of a final whose calls are long", "fewer give no interval that tells 3 % apart")
LONGEST_FINAL = Threshold(6, "times FINAL_SECONDS after which a final ends whatever it knows", "half a minute")
KEPT_SHARE = Threshold(
    0.25,
    "share of a trial's memory that all processes waiting for their next round may hold together",
    "the trial that runs meanwhile has the rest",
)
STARTERS = Threshold(2, "plans that are started at a time", "most of a start is one thread that imports and loads")

THRESHOLDS = {name: value for name, value in globals().items() if isinstance(value, Threshold)}
"""All of them, by their names here."""

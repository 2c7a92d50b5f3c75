"""What may be asked of a search, in words: for the command's help, `tfperf.tune`, `Question` and reports."""

from typing import NamedTuple

__all__ = ["OPTIONS", "Option"]


class Option(NamedTuple):
    """A field of `Question`.

    Attributes:
        argument: of `tfperf.tune`.
        flag: of `tfperf tune`, without its dashes.
        words: what it is, as a sentence goes on.
    """

    argument: str
    flag: str
    words: str

    def help(self, syntax: str = "") -> str:
        """The words as a sentence.

        Args:
            syntax: how it is written on the command line, and what holds where it is left out.
        """
        return f"{self.words[0].upper()}{self.words[1:]}{syntax and ': '}{syntax}."


OPTIONS = {
    "objectives": Option(
        "objective", "objective", "what is best: latency, throughput, size or memory; of several the first decides"
    ),
    "batches": Option("batch", "batch", "batch sizes"),
    "threads": Option("threads", "threads", "thread counts to try"),
    "engines": Option("engines", "engine", "engines to try"),
    "precisions": Option("precisions", "precision", "precisions to try"),
    "transformations": Option("transformations", "transform", "changes of the net to try"),
    "tolerance": Option(
        "tolerance",
        "tolerance",
        "the largest error of any output that passes, as a share of the largest value of that output in float32",
    ),
    "same_top1": Option("same_top1", "same-top1", "the largest answer of each row must be the same, too"),
    "accuracy_drop": Option(
        "accuracy_drop",
        "accuracy-drop",
        "the loss of accuracy on the labels that is accepted, in place of the tolerance",
    ),
    "latency_limit": Option("latency_limit", "latency-limit", "the longest time a call may take"),
    "memory_limit": Option("memory_limit", "memory-limit", "the memory that a trial may use, beyond which it is ended"),
    "trial_seconds": Option(
        "trial_seconds",
        "trial-time",
        "the most seconds for each step of a trial, such as converting; then it is ended",
    ),
    "time_limit": Option("time_limit", "time-limit", "seconds of searching; then the best plans so far are measured"),
}
"""Field of `Question` -> what a user calls it."""

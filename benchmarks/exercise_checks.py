"""The check of every exercise: what the figures of a recipe must show, once it is changed as its `Try:` says."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tfperf.cookbook.exercises import ExerciseOutcome
from tfperf.explaining.explanation import Explanation
from tfperf.measure import Comparison, Environment, Ratio, Verdict, format_bytes, format_seconds
from tfperf.measure.results import Result
from tfperf.measure.words import format_ratio

USUAL_RANKS = 2
"""Ranks of a recipe that is written for several, where nothing says how many."""

MARGIN = 1.1
"""Figures of two runs that differ by less than this factor count as equal, where no interval says more."""

ALIKE = 1.25
"""Times of one run that differ by less than this factor are "as long"."""

STAYS = 1.5
"""Seconds of two runs, minutes apart on a machine that may be another's too, that differ by less "stay"."""


class Outcome(NamedTuple):
    """Whether an effect is seen, and the figures."""

    outcome: ExerciseOutcome
    words: str


class NotHereError(Exception):
    """The exercise cannot be made on this machine; why, in words."""


class RunError(Exception):
    """A recipe did not end well, in words."""


Check = Callable[[Any, Any], Outcome]
"""Takes the result of the recipe as it is, and what the change has written: another result, or an explanation."""


class Exercise(NamedTuple):
    """A change of a recipe, and the check of its effect."""

    recipe: str
    change: str
    check: Check
    flags: Sequence[str] = ()
    environment: Mapping[str, str] = {}
    edit: tuple[str, str] | None = None
    """A text of the recipe's file, and what replaces it."""
    ranks: int = USUAL_RANKS
    command: Sequence[str] = ()
    """Words after `tfperf`, which are run in place of the recipe."""
    reads: type[Result] | type[Explanation] = Result
    """What the run writes."""
    why_not: Callable[[Environment], str] = lambda _: ""
    """Says why a machine cannot show the effect; "" where it can."""


EXERCISES: dict[tuple[str, str], Exercise] = {}


def exercise(recipe: str, change: str, flags: str | None = None, **how: Any) -> Callable[[Check], Check]:
    """Enter a check.

    Args:
        recipe: its name.
        change: as the header says it.
        flags: for the recipe; None: the change is the flags, if it begins as flags do.
        **how: other fields of `Exercise`, where the change is no flag, or where some machines cannot show the effect.
    """
    words = flags if flags is not None else change if change.startswith("--") else ""

    def enter(check: Check) -> Check:
        if (recipe, change) in EXERCISES:
            raise ValueError(f"expected one check for each exercise. Received: two for {recipe}, {change}")
        EXERCISES[recipe, change] = Exercise(recipe, change, check, words.split(), **how)
        return check

    return enter


# ---------------------------------------------------------------- what checks are made of


def seen(held: bool, words: str) -> Outcome:
    """Make the outcome of a check."""
    return Outcome(ExerciseOutcome.HELD if held else ExerciseOutcome.FAILED, words)


def comparison_of(result: Result, *names: str) -> Comparison:
    """Find the first comparison that has all these candidates."""
    for comparison in result.comparisons:
        if set(names) <= {one.name for one in comparison.measurements}:
            return comparison
    raise RunError(f"{result.name} has no comparison of {' and '.join(names)}")


def ratio_of(result: Result, baseline: str, candidate: str) -> Ratio:
    """Find how many times faster a candidate is."""
    return comparison_of(result, baseline, candidate).ratio(baseline, candidate)


def fact_of(result: Result, name: str) -> float:
    """Find a figure."""
    if name not in result.facts:
        raise RunError(f"{result.name} has no fact '{name}'")
    return float(result.facts[name])


def facts_like(result: Result, pattern: str) -> dict[str, float]:
    """Find the figures whose names match; the pattern's group -> figure."""
    matches = {name: re.fullmatch(pattern, name) for name in result.facts}
    return {match[1]: float(result.facts[name]) for name, match in matches.items() if match}


def figure_in(result: Result, pattern: str) -> float:
    """Find a figure in the sentences that a recipe printed."""
    for sentence in result.meaning:
        if match := re.search(pattern, sentence):
            return float(match[1].replace(",", ""))
    raise RunError(f"{result.name} says nothing like '{pattern}'")


def both(usual: Ratio, changed: Ratio) -> str:
    """Say a ratio of both runs."""
    return (
        f"{usual.candidate} against {usual.baseline}: {format_ratio(usual.interval)} as it is, "
        f"{format_ratio(changed.interval)} with the change"
    )


def smaller_gain(usual: Result, changed: Result, baseline: str, candidate: str) -> Outcome:
    """See whether the candidate gains less, or loses more, beyond the intervals of both ratios."""
    before, after = ratio_of(usual, baseline, candidate), ratio_of(changed, baseline, candidate)
    return seen(is_lower(after, before), both(before, after))


def larger_gain(usual: Result, changed: Result, baseline: str, candidate: str) -> Outcome:
    """See whether the candidate gains more, or loses less."""
    before, after = ratio_of(usual, baseline, candidate), ratio_of(changed, baseline, candidate)
    return seen(is_lower(before, after), both(before, after))


def is_lower(one: Ratio, other: Ratio) -> bool:
    """Whether a ratio lies below another by more than their intervals allow; of too few rounds these are too short.

    The runs are independent: squares of the intervals' half widths add up, on the scale of logarithms.
    """
    doubt = math.hypot(*(math.log(ratio.high / ratio.low) / 2 for ratio in (one, other)))
    factor = ALIKE if Verdict.TOO_FEW in (one.verdict, other.verdict) else 1.0
    return math.log(other.estimate / one.estimate) > max(doubt, math.log(factor))


def becomes_alike(usual: Result, changed: Result, baseline: str, candidate: str) -> Outcome:
    """See whether two that differ take equally long with the change."""
    before, after = ratio_of(usual, baseline, candidate), ratio_of(changed, baseline, candidate)
    differed = before.low > ALIKE or before.high < 1 / ALIKE
    return seen(differed and 1 / ALIKE < after.estimate < ALIKE, both(before, after))


def about(usual: float, changed: float, factor: float, tolerance: float) -> bool:
    """Whether a figure has become about so many times as large."""
    return 1 / tolerance < changed / usual / factor < tolerance


def one_core(machine: Environment) -> str:
    """Say why nothing runs side by side."""
    return "" if machine.usable_cores > 1 else "there is one core"


def no_bfloat16(machine: Environment) -> str:
    """Say why bfloat16 gains nothing."""
    if machine.accelerators or machine.instructions_for("bfloat16"):
        return ""
    return "this processor has no instructions for bfloat16, which gains nothing in any net"


# ---------------------------------------------------------------- Python, graphs and the calls


@exercise("async_dispatch", "--products 16 --time-limit 60")
def _(usual: Result, changed: Result) -> Outcome:
    name = "t2, computation: seconds"
    before, after = fact_of(usual, name), fact_of(changed, name)
    gain = smaller_gain(usual, changed, "waiting each time", "waiting once")
    words = f"the computation takes {after / before:.1f} times as long; {gain.words}"
    return seen(gain.outcome is ExerciseOutcome.HELD and about(before, after, 8, STAYS), words)


@exercise("async_dispatch", "--queue 400")
def _(usual: Result, changed: Result) -> Outcome:
    pattern = r"bytes of memory that (\d+) rounds take that nobody waits for"
    ((few, before),), ((many, after),) = facts_like(usual, pattern).items(), facts_like(changed, pattern).items()
    return seen(after > STAYS * before, f"{few} rounds take {format_bytes(before)}, {many} {format_bytes(after)}")


@exercise("auto_parallel", "--threads 2", why_not=one_core)
def _(usual: Result, changed: Result) -> Outcome:
    before, after = (ratio_of(result, "in turns", "together") for result in (usual, changed))
    little = after.estimate - 1 < (before.estimate - 1) / 2
    return seen(is_lower(after, before) and little, both(before, after))


@exercise("hybridize", "--batch 256")
def _(usual: Result, changed: Result) -> Outcome:
    return smaller_gain(usual, changed, "eager", "graph")


@exercise("hybridize", "--model resnet18 --batch 64")
def _(usual: Result, changed: Result) -> Outcome:
    graph, xla = smaller_gain(usual, changed, "eager", "graph"), ratio_of(changed, "graph", "XLA")
    return graph._replace(words=f"{graph.words}; XLA against the graph: {xla.verdict}, {format_ratio(xla.interval)}")


@exercise("save_model", "--model resnet18")
def _(usual: Result, changed: Result) -> Outcome:
    graphs, weights = [], []
    for result in (usual, changed):
        count = figure_in(result, r"The ([\d,]+) weights")
        stored = 4 * count * figure_in(result, r"the export stores each (\d+) time")
        weights.append(count)
        graphs.append(next(iter(facts_like(result, r"bytes: (.*)").values())) - stored)
    grown = [after / before for before, after in (graphs, weights)]
    words = f"{grown[1]:.0f} times the weights; all files beside them take {grown[0]:.0f} times the bytes"
    return seen(min(grown) > 2, f"{words}, {format_bytes(graphs[0])} and {format_bytes(graphs[1])}")


@exercise("save_model", "--batch 256")
def _(usual: Result, changed: Result) -> Outcome:
    return smaller_gain(usual, changed, "the net, eager", "loaded, signature")


@exercise("deploy_engines", "--batch 64")
def _(usual: Result, changed: Result) -> Outcome:
    before, after = (widest(result.comparisons[0]) for result in (usual, changed))
    words = (
        f"{short(one.candidate)} has {format_ratio(one.interval)} the speed of {short(one.baseline)}"
        for one in (before, after)
    )
    return seen(is_lower(after, before), "{} as it is; with the change {}".format(*words))


def widest(comparison: Comparison) -> Ratio:
    """Find the pair that differs most; the candidate is the faster."""
    return max((way for one in comparison.ratios for way in (one, one.inverted())), key=lambda one: one.estimate)


def short(name: str) -> str:
    """Leave the engine of "litert, 1 thread, batch 1"."""
    return name.partition(",")[0]


@exercise("deploy_engines", "--model mnist_cnn")
def _(usual: Result, changed: Result) -> Outcome:
    before, after = usual.comparisons[0], changed.comparisons[0]
    orders = [sorted(one.measurements, key=lambda engine: engine.median) for one in (before, after)]
    words = (", ".join(short(engine.name) for engine in order) for order in orders)
    turned = any(turns_round(one, after) for one in before.ratios)
    return seen(turned, "from fast to slow: {}; and with the change: {}".format(*words))


def turns_round(usual: Ratio, changed: Comparison) -> bool:
    """Whether the slower of a pair is now the faster, beyond both intervals."""
    if not set(usual.names) <= {one.name for one in changed.measurements}:
        return False
    ratio = changed.ratio(*usual.names)
    return (usual.low > 1 and ratio.high < 1) or (usual.high < 1 and ratio.low > 1)


# ---------------------------------------------------------------- where the time goes


@exercise("batch_size_intensity", "--batch 8")
def _(usual: Result, changed: Result) -> Outcome:
    knee, (_, before), (largest, after) = fact_of(changed, KNEE), last_gain(usual), last_gain(changed)
    words = f"the roofs meet at batch {knee:.0f}; with the last larger batch the throughput grows "
    words += f"{format_ratio(before.interval)} as it is, {format_ratio(after.interval)} with the change"
    return seen(largest < knee and after.low > MARGIN, words)


KNEE = "batch at the knee, from the roofs"


def last_gain(result: Result) -> tuple[int, Ratio]:
    """Find the largest batch of a dense layer, and how many times the throughput grows from the batch before it."""
    *_, few, many = (one.name for one in comparison_of(result, "reading").measurements if one.name.startswith("dense"))
    ratio, (less, more) = ratio_of(result, few, many), (int(name.split()[-1]) for name in (few, many))
    return more, ratio.model_copy(
        update={end: more / less * getattr(ratio, end) for end in ("estimate", "low", "high")}
    )


@exercise("batch_size_intensity", "--model resnet18")
def _(usual: Result, changed: Result) -> Outcome:
    pattern = r"FLOP/byte: (?!dense)\S+, batch (\d+)"
    before, after = (facts_like(result, pattern) for result in (usual, changed))
    last = max(before.keys() & after.keys(), key=int)
    grown = [values[last] / values["1"] for values in (before, after)]
    words = "from batch 1 to {} the intensity grows {:.1f} times as it is, {:.1f} times with the change"
    return seen(grown[1] < grown[0] / MARGIN, words.format(last, *grown))


@exercise("bound_by_what", "--megabytes 4")
def _(usual: Result, changed: Result) -> Outcome:
    before, after = (str(result.facts["bound: 4 multiply-adds"]) for result in (usual, changed))
    return seen(
        (before, after) == ("bandwidth", "overhead"), f"4 multiply-adds: {before} as it is, {after} with the change"
    )


@exercise("bound_by_what", "tfperf explain mlp", command=("explain", "mlp"), reads=Explanation)
def _(_: Result, changed: Explanation) -> Outcome:
    layers = changed.batches[0].layers
    return seen(bool(layers), ", ".join(f"{layer.name}: {layer.bound}" for layer in layers))


@exercise("hardware_numbers", "--queue 1")
def _(usual: Result, changed: Result) -> Outcome:
    return becomes_alike(usual, changed, "one at a time", "queued")


BRANCH = """        if number >= limit:
            kept[count] = number
            count += 1
"""
NO_BRANCH = """        kept[count] = number
        count += number >= limit
"""


@exercise(
    "hardware_numbers",
    "kept[count] = number; count += number >= limit, in place of the branch of keep_if",
    edit=(BRANCH, NO_BRANCH),
)
def _(usual: Result, changed: Result) -> Outcome:
    return becomes_alike(usual, changed, "shuffled", "sorted")


@exercise("operator_fusion", "--megabytes 1")
def _(usual: Result, changed: Result) -> Outcome:
    return smaller_gain(usual, changed, "eager, 8 operations", "XLA, 8 operations")


@exercise("operator_fusion", "--model resnet18")
def _(usual: Result, changed: Result) -> Outcome:
    gain, fused = smaller_gain(usual, changed, "graph", "XLA"), fact_of(changed, "fused kernels of TensorFlow")
    words = (
        f"TensorFlow runs {fused:.0f} fused kernels, for {CONVOLUTIONS} convolutions and a Dense layer; {gain.words}"
    )
    return seen(gain.outcome is ExerciseOutcome.HELD and fused > CONVOLUTIONS / 2, words)


CONVOLUTIONS = 20
"""Those of ResNet-18: 1 at its begin, 4 in each of 4 stages, 3 that fit the sizes of two stages to each other."""


@exercise("sharing_a_device", "--numbers 1000")
def _(usual: Result, changed: Result) -> Outcome:
    names = "busy, %: sums from memory", "floating-point operations a second: sums from memory"
    (busy, rate), (busy_now, rate_now) = ([fact_of(result, name) for name in names] for result in (usual, changed))
    words = f"a core is {busy:.0f} % and {busy_now:.0f} % busy, with {rate:.1e} and {rate_now:.1e} operations a second"
    return seen(busy_now > busy / MARGIN and rate_now < rate / 10, words)


@exercise(
    "tensor_cores",
    "ONEDNN_MAX_CPU_ISA=AVX512_CORE in the environment",
    environment={"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    why_not=lambda machine: (
        ""
        if {"avx512_bf16", "amx_bf16"} & set(machine.cpu_features)
        else "this processor has neither AVX-512 BF16 nor AMX"
    ),
)
def _(usual: Result, changed: Result) -> Outcome:
    return smaller_gain(usual, changed, "float32, aligned", "bfloat16, aligned")


@exercise("transfers", "--piece 65536")
def _(usual: Result, changed: Result) -> Outcome:
    kinds, far = facts_like(usual, "seconds to start: (.*)"), []
    words = []
    for kind in kinds:
        before, after = (ratio_of(result, f"{kind}, many", f"{kind}, one") for result in (usual, changed))
        words.append(f"{kind} {before.estimate:.3g} and {after.estimate:.3g} times as long")
        if not is_lower(after, before) and after.estimate > ALIKE:
            far.append(kind)
    return seen(not far, f"pieces as they are, and with the change: {', '.join(words)}")


# ---------------------------------------------------------------- training


@exercise("gradient_accumulation", "--batch 256")
def _(usual: Result, changed: Result) -> Outcome:
    before, after = (fact_of(result, "bytes of peak memory above 16 parts: 1 part") for result in (usual, changed))
    words = f"16 parts save {format_bytes(before)} as it is, {format_bytes(after)} with the change"
    return seen(after < before / STAYS, words)


@exercise("gradient_accumulation", "--model resnet18 --batch 64")
def _(_: Result, changed: Result) -> Outcome:
    share = fact_of(changed, "largest difference of a gradient, as a share of the largest gradient")
    return seen(share > 1e-3, f"gradients of 16 parts differ from the batch's by {share:.1%} of the largest")


@exercise("input_pipeline", "--batch 32")
def _(usual: Result, changed: Result) -> Outcome:
    # An epoch has as many images in both runs, in eight times as many batches
    (read, read_now), (step, step_now) = (
        [epoch_seconds(result, f"prefetch: {what}") for result in (usual, changed)] for what in ("read", "step")
    )
    words = f"a batch is read in 1/{8 * read / read_now:.1f} of the time, and a step takes 1/{8 * step / step_now:.1f}"
    return seen(about(read, read_now, 1, STAYS) and step_now > step * MARGIN, words)


def epoch_seconds(result: Result, name: str) -> float:
    """Find how long an epoch of input_pipeline takes."""
    return comparison_of(result, name)[name].median


@exercise("large_batch", "--batch 64 --rate 0.02")
def _(usual: Result, changed: Result) -> Outcome:
    before, after = (last_runs(result, "linear, warm-up") for result in (usual, changed))
    words = (
        f"steps of each run with the largest batch: {', '.join(before)} as it is, {', '.join(after)} with the change"
    )
    return seen(most_break(after) and not most_break(before), f"{words}; nan: the net breaks")


def last_runs(result: Result, rule: str) -> list[str]:
    """Find the steps of each run with the largest batch, as the recipe writes them."""
    written = str(result.facts[f"steps of each run, by batch: {rule}"])
    return re.findall(r"nan|inf|\d+", written.rpartition("[")[2])


def most_break(runs: list[str]) -> bool:
    """Whether more than half of the runs broke."""
    return runs.count("nan") > len(runs) / 2


@exercise("mixed_precision", "--model mlp", why_not=no_bfloat16)
def _(usual: Result, changed: Result) -> Outcome:
    return smaller_gain(usual, changed, "float32", "mixed_bfloat16")


@exercise("optimizer_step", "--batch 512")
def _(usual: Result, changed: Result) -> Outcome:
    name = "share of a step, Adam as Keras has it: large, of few variables"
    before, after = fact_of(usual, name), fact_of(changed, name)
    words = f"the optimizer is {before:.0%} of a step of the large net as it is, {after:.0%} with the change"
    return seen(after < before / MARGIN, words)


@exercise("quantize_int8", "--model mlp")
def _(_: Result, changed: Result) -> Outcome:
    sizes = facts_like(changed, r"bytes on disk: (.*, (?:float32|int8))")
    libraries = [name.removesuffix(", float32") for name in sizes if name.endswith("float32")]
    shares = {one: sizes[f"{one}, int8"] / sizes[f"{one}, float32"] for one in libraries if f"{one}, int8" in sizes}
    words = (f"{one} {shares[one]:.0%}" if one in shares else f"{one} left out, as too far off" for one in libraries)
    held = {"Keras", "LiteRT"} <= shares.keys() and max(shares.values()) < 1 / 3
    return seen(held, f"int8 by float32, bytes: {', '.join(words)}")


@exercise("steps_per_execution", "--batch 512")
def _(usual: Result, changed: Result) -> Outcome:
    return smaller_gain(usual, changed, "fit, 1 step a call", "the loop by XLA")


@exercise("train_fast", "--batch 2")
def _(usual: Result, changed: Result) -> Outcome:
    return larger_gain(usual, changed, "so far", "Adam in one operation")


# ---------------------------------------------------------------- many devices, workers and servers


@exercise("channel_parallel", "--hidden 64")
def _(usual: Result, changed: Result) -> Outcome:
    pattern = r"batch up to which channels exchange less: (dense.*)"
    (before,), (after,) = (facts_like(result, pattern).values() for result in (usual, changed))
    return seen(
        int(after) <= 64 < int(before), f"up to batches of {before:.0f} as it is, of {after:.0f} with the change"
    )


@exercise("channel_parallel", "--batch 8")
def _(usual: Result, changed: Result) -> Outcome:
    exact = changed.facts["bytes exchanged are as predicted, for each layer"] is True
    gain = smaller_gain(usual, changed, "one device", "split by channels")
    return seen(exact and gain.outcome is ExerciseOutcome.HELD, gain.words)


@exercise("data_parallel_from_scratch", "--devices 4, without --quick", flags="--devices 4")
def _(usual: Result, changed: Result) -> Outcome:
    name = "distance of the source's replicas as a share of the weights"
    before, after = fact_of(usual, name), fact_of(changed, name)
    return seen(after > before * MARGIN, f"replicas are {before:.1%} apart with 2 devices, {after:.1%} with 4")


@exercise("kvstore", "--servers 3")
def _(usual: Result, changed: Result) -> Outcome:
    before, after = (fact_of(result, "bytes on the fullest server, split values") for result in (usual, changed))
    words = f"the fullest of 2 servers holds {before:,.0f} bytes of split values, that of 3 {after:,.0f}"
    return seen(about(before, after, 2 / 3, 1.02), words)


@exercise("kvstore", "--batch 256")
def _(usual: Result, changed: Result) -> Outcome:
    before, after = (fact_of(result, "ms a step, whole values") for result in (usual, changed))
    words = f"a step takes {before:.1f} ms as it is, {after:.1f} ms with the change: {after / before:.2f} times"
    return seen(after / before < 2 / MARGIN, words)


@exercise("mirrored_resnet18", "--batch 4 --images 256")
def _(usual: Result, changed: Result) -> Outcome:
    return smaller_gain(usual, changed, "no strategy", "mirrored on 2")


@exercise(
    "mnist_hvd",
    "tfperf launch -np 4",
    ranks=4,
    why_not=lambda machine: (
        "" if machine.usable_cores < 4 and not machine.accelerators else "each of 4 ranks has a device of its own"
    ),
)
def _(usual: Result, changed: Result) -> Outcome:
    few, many = (figure_in(result, r"(\d+) ranks train") for result in (usual, changed))
    before, after = few * ratio_of(usual, *TOGETHER).estimate, many * ratio_of(changed, *TOGETHER).estimate
    words = f"{few:.0f} ranks train {before:.2f} times the images of one a second, {many:.0f} ranks {after:.2f} times"
    return seen(after < before * STAYS, words)


TOGETHER = ("one rank", "all ranks")


@exercise("mnist_hvd_elastic", "--epochs 4")
def _(usual: Result, changed: Result) -> Outcome:
    names = "seconds from the death to the next batch", "seconds without a batch while the third worker joined"
    death, joining = ([fact_of(result, name) for result in (usual, changed)] for name in names)
    words = "the death costs {:.1f} s as it is and {:.1f} s with the change, the joining {:.1f} s and {:.1f} s"
    return seen(about(*death, 1, STAYS) and about(*joining, 1, STAYS), words.format(*death, *joining))


@exercise("mnist_mixed_mirrored", "--batch 64")
def _(usual: Result, changed: Result) -> Outcome:
    names = [one.name for one in usual.comparisons[0].measurements]
    return smaller_gain(usual, changed, *names[:2])  # float32 on one device, and mirrored


@exercise("mnist_spark", "--epochs 4")
def _(usual: Result, changed: Result) -> Outcome:
    phases = [facts_like(result, "seconds (.*), Horovod on Spark") for result in (usual, changed)]
    training = [seconds.pop("training") for seconds in phases]
    rest = [sum(seconds.values()) for seconds in phases]
    words = (
        "Horovod on Spark trains {:.1f} s as it is and {:.1f} s with the change, and takes {:.1f} s and {:.1f} s more"
    )
    return seen(about(*training, 2, STAYS) and about(*rest, 1, STAYS), words.format(*training, *rest))


@exercise("model_parallel", "--layers 9")
def _(usual: Result, changed: Result) -> Outcome:
    before, after = ([fact_of(result, name) for name in BUBBLES] for result in (usual, changed))
    words = (
        "forward and in training, with 8 micro-batches: {:.1%} and {:.1%} as it is, {:.1%} and {:.1%} with the change"
    )
    return seen(sum(after) > sum(before) * MARGIN, words.format(*before, *after))


BUBBLES = [f"bubble measured, {phase}, 8 micro-batches" for phase in ("forward", "training")]


@exercise("model_parallel", "--batch 512")
def _(usual: Result, changed: Result) -> Outcome:
    return smaller_gain(usual, changed, "one device", "2 stages, 8 micro-batches")


def no_limits(_: Environment) -> str:
    """Say why links have no limit."""
    from tfperf.parallel import can_limit_links

    return "" if can_limit_links() else "links cannot be slowed down here, which needs root's rights"


@exercise("parameter_server", "--megabytes 5", why_not=no_limits)
def _(usual: Result, changed: Result) -> Outcome:
    before, after = ([milliseconds(result, one) for one in SERVERS] for result in (usual, changed))
    words = (
        f"steps take {in_ms(before)} as it is, {in_ms(after)} with the change: one server, whole tensors, equal parts"
    )
    return seen(after[0] / after[2] > before[0] / before[2] * MARGIN, words)


@exercise("parameter_server", "--servers 4")
def _(usual: Result, changed: Result) -> Outcome:
    (whole, equal), (whole_now, equal_now) = (
        [fact_of(result, f"bytes on the fullest server, {way}") for way in SERVERS[1:]] for result in (usual, changed)
    )
    words = (
        f"the fullest of 2 servers holds {whole:,.0f} bytes of whole tensors and {equal:,.0f} of equal parts, "
        f"that of 4 {whole_now:,.0f} and {equal_now:,.0f}"
    )
    return seen(about(whole, whole_now, 1, 1.02) and about(equal, equal_now, 1 / 2, 1.02), words)


SERVERS = ("1 server", "servers, whole tensors", "servers, equal parts")


def milliseconds(result: Result, way: str) -> float:
    """Find the time of a step of parameter_server."""
    return fact_of(result, f"ms a step, {way}")


def in_ms(times: Sequence[float]) -> str:
    """Say several times."""
    return " and ".join(f"{one:.0f}" for one in times) + " ms"


@exercise("ring_allreduce", "--kilobytes 4")
def _(_: Result, changed: Result) -> Outcome:
    slow, full, *_ = (comparison.ratio("ring, n=4", "ring, n=2") for comparison in changed.comparisons)
    words = (
        f"{format_ratio(one.interval)} {where}" for one, where in ((slow, "on slow links"), (full, "at full speed"))
    )
    return seen(min(slow.low, full.low) > STAYS, f"4 ranks take as long as 2, times {' and '.join(words)}")


@exercise("scaling", "--batch 256")
def _(usual: Result, changed: Result) -> Outcome:
    (t1, t2), (t1_now, t2_now) = step_times(usual, 64), step_times(changed, 256)
    knees = [facts_like(result, "knee, workers: ring, (.*)") for result in (usual, changed)]
    words = (
        f"t1 goes from {format_seconds(t1)} to {format_seconds(t1_now)}, t2 from {format_seconds(t2)} to "
        f"{format_seconds(t2_now)}; the last worker worth it: "
    )
    words += ", ".join(f"{way} {before:.0f} as it is, {knees[1][way]:.0f}" for way, before in knees[0].items())
    more = all(knees[1][way] > before for way, before in knees[0].items())
    return seen(t1_now > t1 * STAYS and about(t2, t2_now, 1, STAYS) and more, words)


@exercise("scaling", "--megabytes 200")
def _(usual: Result, changed: Result) -> Outcome:
    (_, t2), (t1_now, t2_now) = step_times(usual, 64), step_times(changed, 64)
    share = t2_now / (t1_now + t2_now)
    words = f"t2 goes from {format_seconds(t2)} to {format_seconds(t2_now)}, and is {share:.0%} of t1 + t2"
    return seen(about(t2, t2_now, 1 / 4, STAYS) and share < 0.2, words)


def step_times(result: Result, batch: int) -> tuple[float, float]:
    """Find t1 and t2 of 2 workers."""
    compute, exchange = (fact_of(result, f"seconds, 2 workers of batch {batch}: {what}") for what in STEP)
    return compute, exchange


STEP = ("compute", "exchange")

"""Is tfperf's choice for a net ever slower than what its peers do with it?

    make peers                                       # once: installs PyTorch and JAX in .venv-peers
    python benchmarks/peers.py                       # 20 to 40 minutes; leave the machine alone meanwhile
    python benchmarks/peers.py --quick               # rougher, in a third of the time
    python benchmarks/peers.py --net mlp --net resnet18 --json figures.json

One net after the other, batch 1: the plan that tfperf chooses takes turns with PyTorch (eager, TorchScript,
torch.compile), JAX, ONNX Runtime, OpenVINO and LiteRT, each in a process of its own with the number of threads that it
takes by itself, on the same weights and the same input. Everyone's answers are checked against Keras's first. Twice:
all in float32, and tfperf with an error of up to 2 % beside the same peers and those in bfloat16.

Exit code 0: nowhere was tfperf's choice slower than a peer, beyond the interval of their ratio. 1: it was, or a peer
did not run, or all were measured too seldom for a verdict. 2: the peers are not installed.
"""
# ruff: noqa: E402 - the path must be cleaned before anything is imported

import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != HERE]
sys.path.append(str(HERE.parent))  # else the names of files here would hide libraries; the package is benchmarks.peers

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.peers.catalog import FLOAT32, NETS, PEERS, TOLERANCES, Peer, why_not_set_up
from benchmarks.peers.process import PeerProcess, PeerWork
from tfperf.engines import ENGINES, Plan, missing
from tfperf.engines.plan import Precision
from tfperf.errors import BAD_INPUT, EngineError, TfperfError
from tfperf.importing import load_tensorflow
from tfperf.measure import Agreement, Comparison, Ratio, Verdict, check_agreement, compare
from tfperf.measure.results import Result, write_result
from tfperf.measure.words import format_interval, format_ratio
from tfperf.report.tables import bare_table
from tfperf.trials.side_by_side import SETTLING_SECONDS, InTurns, Turns

SECONDS = 90.0  # of measuring, for each of the two comparisons of a net
QUICK_SHARE = 1 / 4
OURS = "tfperf"
FILE_WIDTH = 120  # of the tables where no terminal has a width

console = Console(highlight=False, width=None if sys.stdout.isatty() else FILE_WIDTH)


class Contest(NamedTuple):
    """One of the two comparisons."""

    name: str
    peers: Sequence[Peer]
    precisions: Sequence[Precision]
    """Among which tfperf chooses."""
    tolerance: float
    """The largest error of tfperf's outputs."""


CONTESTS = (
    Contest("float32", FLOAT32, ("float32",), TOLERANCES["float32"]),
    Contest("reduced", PEERS, ("float32", "bfloat16", "int8", "int8_static"), 2e-2),
)


class Candidate(NamedTuple):
    """Whoever can be measured."""

    work: InTurns
    agreement: Agreement
    words: str


class Found(NamedTuple):
    """What a contest on a net has shown."""

    net: str
    contest: Contest
    choice: Plan
    candidates: dict[str, Candidate]
    failed: dict[str, str]
    comparison: Comparison

    @property
    def title(self) -> str:
        return f"{self.net}, {self.contest.name}"

    def ratio(self, peer: str) -> Ratio:
        """How many times faster tfperf's choice is than a peer."""
        return self.comparison.ratio(self.measured(peer), self.measured(OURS))

    def measured(self, name: str) -> str:
        """What the measurement of a candidate is called."""
        return f"{self.title}: {name}"

    @property
    def best(self) -> str:
        """The fastest peer."""
        peers = [name for name in self.candidates if name != OURS]
        return min(peers, key=lambda name: self.comparison[self.measured(name)].median)

    @property
    def lost_to(self) -> list[str]:
        """The peers that were faster."""
        return [name for name in self.candidates if name != OURS and self.ratio(name).verdict is Verdict.SLOWER]

    @property
    def held(self) -> bool:
        """Whether every peer ran, enough for a verdict, and none was faster."""
        return not self.lost_to and not self.failed and not self.comparison.doubts

    def __str__(self) -> str:
        ratio = self.ratio(self.best)
        said = f"{self.title}: {self.choice} against the best peer, {self.best}: {ratio.verdict}"
        lost = f"; slower than {', '.join(self.lost_to)}" if self.lost_to else ""
        failed = f"; did not run: {', '.join(self.failed)}" if self.failed else ""
        doubts = "".join(f"; {doubt.words}" for doubt in self.comparison.doubts)
        words = f"{said}, {format_ratio(ratio.interval)}{lost}{failed}{doubts}"
        return f"{words}: {'holds' if self.held else 'DOES NOT HOLD'}"


def main(
    net: Annotated[list[str] | None, typer.Option(help="Only this one; may be given several times.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A quarter of the measuring.")] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the figures here too.")] = None,
) -> None:
    """Compare tfperf's choice for each net with the peers."""
    if unknown := [name for name in net or () if name not in NETS]:
        raise typer.BadParameter(f"expected one of {', '.join(NETS)}. Received: {', '.join(unknown)}")
    absent = [wanted for engine in ENGINES if (wanted := missing(engine))]
    if why := why_not_set_up() or "; ".join(absent):
        print(why, file=sys.stderr)
        raise typer.Exit(BAD_INPUT)
    load_tensorflow()
    found: list[Found] = []
    try:
        for name in net or NETS:
            for one in contests_on(name, QUICK_SHARE if quick else 1.0):
                console.print(f"\n{one.title}; tfperf: {one.choice}", markup=False, style="bold")
                console.print(table(one))
                found.append(one)
    except TfperfError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from error
    console.print()
    for one in found:
        console.print(str(one), markup=False)
    if json_path:
        write_result(json_path, result(found))
    raise typer.Exit(0 if all(one.held for one in found) else 1)


def contests_on(name: str, share: float) -> list[Found]:
    """Both contests on one net, at whose end all their processes have ended.

    Args:
        share: of the time for measuring.

    Raises:
        TfperfError: tfperf cannot run the net, or a process died or hung while all were measured.
    """
    from benchmarks.peers.choice import choose
    from benchmarks.peers.subject import prepare
    from tfperf.trials.launching import Launcher
    from tfperf.trials.side_by_side import Examples

    def ours(plan: Plan, tolerance: float, turns: Turns) -> Candidate:
        process, loaded = launcher.start(plan)
        checked = process.check(*examples, tolerance=tolerance)
        call = process.work(examples.batch)
        in_contest.enter_context(call.host.taking_turns())
        work = InTurns(call, turns, call.host.rest, call.host.wake)
        return Candidate(work, checked.agreement, loaded.proof.get("threads", ""))

    def theirs(peer: Peer) -> tuple[PeerProcess, Agreement, str]:
        process = stack.enter_context(PeerProcess(peer))
        words = process.load(subject.name, subject.folder)
        tolerance = TOLERANCES[peer.precision]
        agreement = check_agreement(peer.name, process.answers(), subject.reference, tolerance)
        if not agreement.passed:
            raise EngineError(f"wrong answers: {agreement}")
        return process, agreement, words

    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for_peers, for_us = scratch / "peers", scratch / "tfperf"
        for_peers.mkdir()
        for_us.mkdir()
        console.print(f"\n{name}: converting", markup=False, style="dim")
        subject = prepare(name, for_peers)
        examples = Examples.store(for_us, subject.servable, 1, [subject.inputs])
        peers: dict[str, tuple[PeerProcess, Agreement, str]] = {}
        failed: dict[str, str] = {}
        found: list[Found] = []
        for contest in CONTESTS:
            console.print(f"{name}, {contest.name}: choosing, then measuring", markup=False, style="dim")
            choice = choose(subject, contest.precisions, contest.tolerance)
            for peer in contest.peers:
                if peer.name not in peers and peer.name not in failed:
                    try:
                        peers[peer.name] = theirs(peer)
                    except EngineError as error:
                        failed[peer.name] = str(error)
            turns = Turns()
            with (
                Launcher(subject.servable, subject.origin, for_us, representative=[subject.inputs]) as launcher,
                contextlib.ExitStack() as in_contest,
            ):
                candidates = {OURS: ours(choice, contest.tolerance, turns)}
                for who, (process, agreement, words) in peers.items():
                    process.rest()
                    in_contest.callback(process.wake)
                    work = InTurns(PeerWork(process), turns, process.rest, process.wake)
                    candidates[who] = Candidate(work, agreement, words)
                works = {f"{name}, {contest.name}: {who}": one.work for who, one in candidates.items()}
                comparison = compare(works, time_limit=SECONDS * share, turn_seconds=SETTLING_SECONDS)
            found.append(Found(name, contest, choice, candidates, dict(failed), comparison))
    return found


def table(found: Found) -> Table:
    """Everyone's time, the fastest first, and how tfperf's choice stands beside it; who did not run below."""
    made = bare_table("", "median [95 %]", "tfperf is [99 %]", "verdict", "error", "cores")
    by_time = sorted(found.candidates, key=lambda name: found.comparison[found.measured(name)].median)
    for name in by_time:
        candidate, ratio = found.candidates[name], None if name == OURS else found.ratio(name)
        made.add_row(
            escape(name),
            format_interval(found.comparison[found.measured(name)].interval),
            format_ratio(ratio.interval) if ratio else "",
            ratio.verdict if ratio else "",
            f"{candidate.agreement.relative_error:.1e}",
            f"{candidate.work.cores_used:.2f}",
        )
    made.caption = "\n".join(escape(f"did not run: {name}: {why}") for name, why in found.failed.items()) or None
    return made


def result(found: Sequence[Found]) -> Result:
    """The figures of a run."""
    facts: dict[str, Any] = {}
    for one in found:
        facts[f"{one.title}: tfperf's choice"] = str(one.choice)
        facts |= {f"{one.title}: {name} is": other.words for name, other in one.candidates.items() if other.words}
        facts |= {f"{one.title}: {name} did not run": why for name, why in one.failed.items()}
    return Result(
        name="benchmark of peers",
        comparisons=tuple(one.comparison for one in found),
        agreements=tuple(
            candidate.agreement.model_copy(update={"candidate": one.measured(name)})
            for one in found
            for name, candidate in one.candidates.items()
        ),
        facts=facts,
        meaning=tuple(map(str, found)),
    )


if __name__ == "__main__":
    typer.run(main)

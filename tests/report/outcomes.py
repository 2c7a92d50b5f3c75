"""Made-up outcomes of searches: each function gives one, of measurements that `measured` of tests/conftest.py makes."""

import itertools

import numpy as np

from tfperf.engines.plan import Plan
from tfperf.measure import Agreement, Comparison, Doubt, Stop
from tfperf.measure.comparison import paired
from tfperf.search.outcome import Outcome
from tfperf.search.question import Question
from tfperf.trials.trial import Status, Trial

HOSTILE = (
    "<script>document.title='script ran'</script>",
    "<img src=x onerror=\"document.title='image ran'\">",
    "\"><svg onload=document.title='svg ran'>",
    "]]><b>bold</b> --> <!-- $x_1$ \\frac{1}{2} & &amp; &#60;i&#62;",
    "=cmd|'/c calc'!A1",
    "</style><style>*{display:none}</style></title></table>",
    "{{ 7 * 7 }}{% raw %} [link](javascript:alert(1)) `code` |pipe| _under_ **bold**",
    "\u05d0\u05d1\u05d2 \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u6a21\u578b",
    "x" * 150,
)
"""Names that would do harm if a report took them for markup: HTML, SVG, mathtext, a spreadsheet, a template, Markdown;
from right to left, in letters that no font of Matplotlib has; very long."""


class Bench:
    """Makes trials and comparisons of them."""

    def __init__(self, measured):
        self.measured = measured
        self.made = 0

    def samples(self, seconds):
        self.made += 1
        generator = np.random.default_rng(self.made)
        return seconds * (generator.normal(1, 0.004, 80) + generator.exponential(0.01, 80))

    def trial(self, engine, seconds=None, *, batch=1, precision="float32", threads=1, transformations=(), **changes):
        plan = Plan(engine=engine, precision=precision, threads=threads, transformations=transformations)
        trial = Trial(
            plan=plan,
            batch=batch,
            status=Status.RAN if seconds else Status.NOT_TRIED,
            command=f"tfperf engines model.keras --engine {engine} --precision {precision} --batch {batch}",
        )
        if seconds is None:
            return trial.model_copy(update=changes)
        error = changes.pop("error", {"float32": 8.3e-7, "bfloat16": 4e-3, "float16": 6e-4}.get(precision, 2e-2))
        fields = {
            "proof": {"threads": "1, as it says"},
            "size": None
            if engine in {"eager", "predict", "graph"}
            else 3 * 2**20 // (1 + 3 * precision.startswith("int")),
            "load_seconds": 0.25,
            "first_call_seconds": 0.125,
            "agreement": Agreement(
                candidate=trial.name,
                largest_absolute_error=error,
                relative_error=error,
                same_top1_share=1.0,
                tolerance=1e-4,
            ),
            "measurement": self.measured(trial.name, self.samples(seconds)),
            "cores_used": 1.26,
        }
        return trial.model_copy(update=fields | changes)

    def turns(self, *trials, doubts=()):
        """The trials measured again, in turns; ratios of seconds an example, as a search keeps them."""
        seconds = {trial.name: self.samples(trial.measurement.median / 1.01) for trial in trials}
        each = {trial.name: seconds[trial.name] / trial.batch for trial in trials}
        return Comparison(
            measurements=tuple(self.measured(name, samples) for name, samples in seconds.items()),
            ratios=tuple(paired(a, b, each[a], each[b], 0.01) for a, b in itertools.combinations(each, 2)),
            rounds=80,
            margin=0.01,
            stopped=Stop.PRECISION,
            doubts=doubts,
        )

    def outcome(self, environment, trials, *, asked=None, **changes):
        question = {
            "threads": tuple(sorted({trial.plan.threads or 1 for trial in trials})) or (1,),
            "engines": tuple(dict.fromkeys(trial.plan.engine for trial in trials)) or ("eager",),
            "batches": tuple(sorted({trial.batch for trial in trials})) or (1,),
            "memory_limit": 8 * 2**30,
        }
        fields = {
            "created": "2026-01-02T03:04:05+00:00",
            "model": "mnist_cnn",
            "opened_as": "my models/model.keras",
            "environment": environment,
            "seconds": 312.4,
            "trials": tuple(trials),
        }
        return Outcome(question=Question(**question | (asked or {})), **fields | changes)


FAILED = (
    ("openvino", Status.MISSING, "openvino is missing (openvino); pip install 'tfperf[openvino]'"),
    ("xla", Status.REFUSED, "expected a precision of xla (float32, bfloat16, float16). Received: int8"),
    ("onnx", Status.WRONG, "relative error 0.3, tolerance 0.0001"),
    ("c_api", Status.CRASHED, "the process ended by signal 11 (SIGSEGV) in its first call"),
    ("xla_aot", Status.TIMED_OUT, "no answer in 300 s while it was converted"),
    ("frozen", Status.OUT_OF_MEMORY, "its processes used 9.1 GiB, the limit is 8 GiB"),
    ("saved_model", Status.NOT_TRIED, "the time was up"),
)


def _usual(bench):
    """What ran: three defaults and three engines, the slowest first."""
    predict, eager = bench.trial("predict", 34e-3, threads=None), bench.trial("eager", 1.47e-3, threads=None)
    graph = bench.trial("graph", 1.2e-4, threads=None)
    onnx, frozen = bench.trial("onnx", 2.1e-5), bench.trial("frozen", 9e-5)
    return [predict, eager, graph, frozen, onnx, bench.trial("litert", 8.4e-6)]


def one_winner(measured, environment):
    """A winner that is confirmed, and one trial of each status."""
    bench = Bench(measured)
    predict, eager, graph, frozen, onnx, litert = ran = _usual(bench)
    failed = [bench.trial(e, None, precision="int8", status=s, reason=r) for e, s, r in FAILED]
    drift = Doubt(name="drift", words="the last third is 4 % slower than the first", advice="let the machine cool")
    return bench.outcome(
        environment,
        [*ran, *failed],
        final=bench.turns(litert, onnx, frozen, predict, eager, graph, doubts=(drift,)),
        confirmation=bench.turns(litert, predict, eager, graph),
        winner=litert.name,
        defaults=(predict.name, eager.name, graph.name),
    )


def equals(measured, environment):
    """Two engines that are equally fast."""
    bench = Bench(measured)
    eager, onnx, litert = bench.trial("eager", 1e-3), bench.trial("onnx", 1e-5), bench.trial("litert", 1.001e-5)
    return bench.outcome(
        environment,
        [eager, onnx, litert],
        final=bench.turns(onnx, litert),
        confirmation=bench.turns(onnx, litert, eager),
        winner=onnx.name,
        equals=(litert.name,),
        defaults=(eager.name,),
    )


def yours_wins(measured, environment):
    """The winner is a default."""
    bench = Bench(measured)
    eager, graph, onnx = bench.trial("eager", 1e-3), bench.trial("graph", 1e-4), bench.trial("onnx", 2e-4)
    return bench.outcome(
        environment,
        [eager, graph, onnx],
        final=bench.turns(graph, onnx),
        confirmation=bench.turns(graph, eager),
        winner=graph.name,
        defaults=(eager.name, graph.name),
    )


def nothing_ran(measured, environment):
    """Every plan failed."""
    bench = Bench(measured)
    trials = [bench.trial(e, None, status=s, reason=r) for e, s, r in FAILED]
    return bench.outcome(environment, trials, defaults=(trials[0].name,))


def interrupted(measured, environment):
    """Ctrl-C before any two were measured side by side."""
    bench = Bench(measured)
    eager, onnx = bench.trial("eager", 1e-3), bench.trial("onnx", 1e-4)
    left = bench.trial("litert", None, reason="interrupted")
    return bench.outcome(
        environment, [eager, onnx, left], winner=onnx.name, defaults=(eager.name,), ended="interrupted"
    )


def pareto(measured, environment):
    """Latency and size: a small int8 net, a fast float32 one."""
    bench = Bench(measured)
    eager, xla = bench.trial("eager", 1e-3), bench.trial("xla_aot", 6e-6, size=9 * 2**20)
    litert, small = bench.trial("litert", 8e-6), bench.trial("litert", 1e-5, precision="int8")
    tiny = bench.trial("onnx", 3e-5, precision="int8", size=500_000)
    surpassed = bench.trial("frozen", 9e-5, size=2**22)
    return bench.outcome(
        environment,
        [eager, xla, litert, small, tiny, surpassed],
        asked={"objectives": ("latency", "size", "memory"), "tolerance": 5e-2},
        final=bench.turns(xla, litert, small),
        confirmation=bench.turns(xla, eager),
        winner=xla.name,
        defaults=(eager.name,),
        front=(xla.name, litert.name, small.name, tiny.name),
    )


def throughput(measured, environment):
    """Examples a second over batch sizes, precisions and transformations: many trials; out of time, but confirmed."""
    bench = Bench(measured)
    kinds = (("eager", 1.4e-3, 9e-6), ("graph", 1.2e-4, 8e-6), ("onnx", 2e-5, 6e-6), ("litert", 9e-6, 7e-6))
    precisions = (("float32", 1.0), ("bfloat16", 0.7), ("int8", 0.8))
    trials = {}
    for (engine, call, each), (precision, factor), batch in itertools.product(kinds, precisions, (1, 8, 64, 256)):
        if engine == "eager" and precision != "float32":
            continue
        folded = ("fold_batch_norm", "constant_weights") if engine == "graph" else ()
        seconds = (call + each * batch) * factor
        trials[engine, precision, batch] = bench.trial(
            engine,
            seconds,
            batch=batch,
            precision=precision,
            threads=None if engine == "eager" else 2,
            transformations=folded,
            accuracy=0.983,
        )
    best, first, last = trials["onnx", "bfloat16", 256], trials["eager", "float32", 1], trials["eager", "float32", 256]
    rest = [trials[engine, "bfloat16", 256] for engine in ("graph", "litert")]
    return bench.outcome(
        environment,
        trials.values(),
        asked={"objectives": ("throughput",), "accuracy_drop": 0.005},
        final=bench.turns(best, *rest, trials["onnx", "bfloat16", 64]),
        confirmation=bench.turns(best, first, last),
        winner=best.name,
        defaults=(first.name, last.name),
        reference_accuracy=0.9845,
        ended="time limit",
    )


def hostile(measured, environment):
    """Every text a report shows is out to do harm."""
    bench = Bench(measured)
    kept = {"reason": " ".join(HOSTILE), "command": f"tfperf {HOSTILE[0]} {HOSTILE[4]} ``` {HOSTILE[6]}"}
    trials = [bench.trial(name, 1e-5 * (n + 1), **kept) for n, name in enumerate(HOSTILE)]
    trials += [bench.trial(f"{name} failed", None, status=Status.CRASHED, **kept) for name in HOSTILE]
    words = "; ".join(HOSTILE)
    bad = Doubt(name=HOSTILE[0], words=words, advice=words)
    harmful = environment.model_copy(
        update={"cpu": HOSTILE[1], "packages": {HOSTILE[0]: HOSTILE[2]}, "variables": {HOSTILE[3]: HOSTILE[5]}}
    )
    return bench.outcome(
        harmful,
        trials,
        asked={"objectives": ("latency", "memory")},
        model=HOSTILE[0] + HOSTILE[1],
        opened_as=words,
        final=bench.turns(*trials[: len(HOSTILE)], doubts=(bad,)),
        confirmation=bench.turns(*trials[:3]),
        winner=trials[0].name,
        equals=(trials[2].name,),
        defaults=(trials[1].name, trials[2].name),
        front=tuple(trial.name for trial in trials[: len(HOSTILE)]),
        doubts=(bad.model_copy(update={"name": HOSTILE[6]}),),
    )


CASES = {
    case.__name__: case
    for case in (one_winner, equals, yours_wins, nothing_ran, interrupted, pareto, throughput, hostile)
}
"""Name -> function of `measured` and an environment."""

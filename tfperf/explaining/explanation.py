"""What was found out about where a model's time goes: values that result files keep."""

from datetime import UTC, datetime
from typing import Literal

from pydantic import Field

from tfperf.hardware.kernels.roofline import Bound, Spent
from tfperf.measure import Comparison, Doubt, Environment, Ratio
from tfperf.measure.value import Count, Name, Text, Value

__all__ = [
    "BIG",
    "NEAR",
    "CallTime",
    "Explained",
    "Explanation",
    "Intervention",
    "LayerTime",
    "Roof",
    "StepPart",
    "Technique",
    "TrainingStep",
    "Xla",
]

FORMAT: Literal["tfperf explanation"] = "tfperf explanation"
VERSION: Literal[6] = 6
"""It rises with every change of the fields. 6: whether the optimizer of a training step can be made faster."""

BIG = 0.05
"""Share of the kernels' time from which a layer is big."""

NEAR = 0.3
"""A prediction is near that is off by no more than this share of what was measured."""

Seconds = float


class LayerTime(Value):
    """A layer: what its kernels compute and move, and how long they take."""

    name: Name
    flops: Count
    bytes: Count = Field(description="read and written, as by the kernels that ran")
    kernels: Count = Field(description="that compute or move something")
    seconds: Seconds = Field(ge=0, description="measured inside of kernels: the sum of their shortest runs")
    predicted: Seconds = Field(ge=0, description="what its kernels take by themselves")
    at_best: Seconds = Field(ge=0, description="at the machine's peak or bandwidth, whichever takes longer")
    compute: Seconds = Field(ge=0, description="of the measured: kernels whose arithmetic takes longer than traffic")
    bandwidth: Seconds = Field(ge=0, description="of the measured: kernels whose traffic takes longer")
    overhead: Seconds = Field(ge=0, description="of the measured: what starting the kernels takes")

    @property
    def bound(self) -> Bound:
        """What most of its time is bound by."""
        return Spent(self.compute, self.bandwidth, self.overhead).bound

    @property
    def intensity(self) -> float:
        """Floating-point operations for each byte; infinite where none is moved."""
        return self.flops / self.bytes if self.bytes else float("inf")

    @property
    def error(self) -> float:
        """By which share of the measured time the prediction is off, with its sign."""
        return self.predicted / self.seconds - 1 if self.seconds else 0.0


class CallTime(Value):
    """One way to call the model: how long a call takes, and on what. Forward alone is in float32."""

    way: Name = Field(description="eager or graph")
    seconds: Seconds = Field(gt=0, description="the median of a call")
    predicted: Seconds | None = Field(description="None: of eager calls, which are Python's")
    kernels: Count = Field(description="that compute or move something")
    compute: Seconds = Field(ge=0)
    bandwidth: Seconds = Field(ge=0)
    overhead: Seconds = Field(ge=0, description="between kernels, and their starts")
    between: Seconds = Field(ge=0, description="between kernels: Python, dispatch, memory; part of the overhead")

    @property
    def spent(self) -> Spent:
        """Its three parts."""
        return Spent(self.compute, self.bandwidth, self.overhead)

    @property
    def bound(self) -> Bound:
        """What most of its time is bound by."""
        return self.spent.bound

    @property
    def overhead_share(self) -> float:
        """The share of a call that no kernel takes."""
        return min(1.0, self.between / self.seconds)


class Technique(Value):
    """A technique of the cookbook that should help, with the gain that is predicted."""

    recipe: Name
    way: Name = Field(description="what it would be beside the others: 'graph', 'XLA', 'batch 64'")
    against: Name = Field(description="the way that it is compared with")
    batch: int | None = Field(default=None, ge=1, description="another size of the batch; None: the same")
    words: Text
    before: Seconds = Field(gt=0, description="measured, for each example where the batch is another")
    predicted: Seconds = Field(gt=0)
    measured: Ratio | None = Field(default=None, description="None: it was not tried")

    @property
    def gain(self) -> float:
        """How many times as fast it should be."""
        return self.before / self.predicted


class Intervention(Value):
    """Something was changed, to see whether the time moves as the class says."""

    what: Text
    bound: Bound = Field(description="the class that is put to the test")
    expected: float = Field(gt=0, description="time after by time before, as the model of the machine predicts it")
    ratio: Ratio = Field(description="of the changed against the original: how many times faster")
    agrees: bool
    words: Text


class Xla(Value):
    """What XLA makes of the model."""

    compiled: bool
    reason: Text = Field(description="why it is not, or why its kernels cannot be counted; else empty")
    operations: Count = Field(description="that compute or move something, before")
    kernels: Count
    fusions: Count
    bytes_before: Count
    bytes_after: Count


class StepPart(Value):
    """A part of a training step."""

    name: Name
    seconds: Seconds = Field(ge=0)
    half_width: Seconds = Field(ge=0, description="of the 95 % interval")


class TrainingStep(Value):
    """A step of Keras's `fit`, and its parts: each is what a step takes more that also does this."""

    seconds: Seconds = Field(gt=0, description="of a step, by the median")
    parts: tuple[StepPart, ...] = Field(min_length=1)
    may_be_fast: bool = Field(description="whether `fast_optimizer` takes its optimizer, and has not done so yet")

    def share(self, part: StepPart) -> float:
        """The share of the step that a part takes."""
        return part.seconds / self.seconds


class Explained(Value):
    """A model at one batch size."""

    batch: int = Field(ge=1)
    flops: Count
    bytes: Count = Field(description="as the graph is written, each tensor read and written once by each operation")
    calls: tuple[CallTime, ...] = Field(min_length=1)
    comparison: Comparison | None = Field(description="of the calls, side by side; None: there is one only")
    layers: tuple[LayerTime, ...]
    tracing_cost: float = Field(description="how much longer a traced run takes, as a share")
    disturbance: float = Field(ge=1, description="times as long as at best the kernels took in a usual run")
    xla: Xla
    techniques: tuple[Technique, ...] = ()
    interventions: tuple[Intervention, ...] = ()
    step: TrainingStep | None = Field(default=None, description="of training, in parts; None: it was not asked for")
    verdicts: tuple[Text, ...] = ()

    def call(self, way: str) -> CallTime | None:
        """The call of a way, if there is one."""
        return next((one for one in self.calls if one.way == way), None)

    @property
    def big_layers(self) -> tuple[LayerTime, ...]:
        """Those that take more than `BIG` of the kernels' time, the longest first."""
        whole = sum(layer.seconds for layer in self.layers)
        big = [layer for layer in self.layers if layer.seconds > BIG * whole]
        return tuple(sorted(big, key=lambda layer: -layer.seconds))

    @property
    def near(self) -> int:
        """How many big layers are predicted within `NEAR`."""
        return sum(abs(layer.error) <= NEAR for layer in self.big_layers)


class Roof(Value):
    """A line of the roofline: arithmetic, or bytes a second."""

    name: Name
    flops_per_second: float | None = None
    bytes_per_second: float | None = None


class Explanation(Value):
    """What a model waits for, with its numbers. Immutable."""

    format: Literal["tfperf explanation"] = FORMAT
    version: Literal[6] = VERSION
    model: Name
    opened_as: Text
    training: bool = Field(description="forward and backward, in place of forward alone")
    threads: int = Field(ge=1)
    created: str = Field(
        default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"), pattern=r"^[0-9T:.+Z-]{1,40}$"
    )
    environment: Environment
    roofs: tuple[Roof, ...]
    batches: tuple[Explained, ...] = Field(min_length=1)
    traces: Count = Field(description="how often a tf.function of it traced while the batches were called")
    doubts: tuple[Doubt, ...] = ()

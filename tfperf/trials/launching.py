"""From plans to processes that run them, for one net; what they load is converted in a process too."""

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tfperf.engines.building import conversions_folder
from tfperf.engines.catalog import find_engine, missing
from tfperf.engines.conversions import Conversions
from tfperf.engines.plan import Plan
from tfperf.errors import TfperfError, in_one_line
from tfperf.exports.servable import Servable
from tfperf.trials.host import DEADLINE, Child, Here, Host
from tfperf.trials.process import EngineProcess, Loaded, Origin, store_arrays
from tfperf.trials.trial import Status, TrialError
from tfperf.trials.worker import USUAL_TMPDIR

__all__ = ["Launcher"]


class Launcher:
    """Starts processes for plans of one net; a context manager, at whose end all of them end.

    A converter may hang, crash or take all memory as well as an engine may. So they run in a process of their own,
    one for all conversions until it dies; a compiler, which needs no net, in another. Several threads may start plans
    at the same time.

    Attributes:
        conversions: of the net.
        closed: whether all processes were ended.
    """

    def __init__(
        self,
        servable: Servable,
        origin: Origin,
        scratch: Path,
        *,
        representative: Sequence[NDArray[Any]] | None = None,
        cache: Path | None = None,
        deadline: float = DEADLINE,
        memory_limit: int | None = None,
        graph_only: bool = False,
    ) -> None:
        """Look at the net; nothing is started yet.

        Args:
            origin: how a process opens it again.
            scratch: folder for files that go to processes, and for their temporary files: they are killed at their
                end, and remove none. The model's own code has its temporary files where they always are.
            representative: inputs from which `int8_static` takes its scales; None: random ones.
            cache: folder of conversions; None: in tfperf's own cache.
            deadline: seconds for each answer of a process, after which it is ended.
            memory_limit: bytes that a process and all it started may use, beyond which it is ended.
            graph_only: the origin is the net's graph; engines that call its Python code do so in this process.

        Raises:
            ValueError: the net does not take the representative inputs.
        """
        self._servable, self._origin, self._graph_only, self._scratch = servable, origin, graph_only, scratch
        weights = servable.net.get_weights() if servable.net is not None else []
        self._weights = store_arrays(scratch / "weights.npz", weights)
        temporary = scratch / "temporary"
        temporary.mkdir(exist_ok=True)
        self._settings: dict[str, Any] = {
            "environment": {"TMPDIR": str(temporary), USUAL_TMPDIR: os.environ.get("TMPDIR", "")},
            "deadline": deadline,
            "memory_limit": memory_limit,
        }
        self.conversions = Conversions(servable, cache or conversions_folder(), representative)
        self._representative = (
            store_arrays(scratch / "representative.npz", representative) if representative is not None else None
        )
        self._hosts: set[Host] = set()
        self._converter: Child | None = None
        self._cannot_open: TrialError | None = None
        self._converting, self._compiling = threading.Lock(), threading.Lock()
        self.closed = False
        self._quiet: contextlib.ExitStack | None = None
        self._changing = threading.RLock()  # of the two above, and of the hosts

    def start(self, plan: Plan) -> tuple[EngineProcess, Loaded]:
        """A process in which the plan is made real.

        Raises:
            TrialError: the engine is not installed, cannot take the net or the plan, or the process died, hung or
                took too much memory.
        """
        engine = find_engine(plan.engine)
        if wanted := missing(engine):
            raise TrialError(Status.MISSING, wanted)
        try:
            engine.check(plan)
            folder = self._converted(plan) if engine.format is not None else None
        except TrialError:
            raise
        except TfperfError as error:
            raise TrialError(Status.REFUSED, str(error)) from error
        except Exception as error:  # of the engine's module, which may be another package's
            raise TrialError(Status.REFUSED, f"{plan}: {in_one_line(error)}") from error
        if folder is None and self._graph_only:
            here = Here()
            return EngineProcess(plan, here), Loaded(**here.build(plan, self._servable))
        process = EngineProcess(plan, Child(**self._settings))
        self._keep(process.host)
        try:
            if folder is None:
                return process, process.build(self._origin, self._weights, self._servable.signature)
            return process, process.load(folder, self._servable.signature)
        except BaseException:
            self.end(process)
            raise

    def can_open(self) -> bool:
        """Whether a process can open the net again; the one that tries is kept for conversions."""
        with self._converting:
            try:
                self._converter = self._converter or self._new_converter()
            except TrialError:
                return False
        return True

    def end(self, process: EngineProcess) -> None:
        """End a process."""
        self._end(process.host)

    @contextlib.contextmanager
    def quiet(self, but: EngineProcess) -> Iterator[None]:
        """Have all other processes stand still, those started meanwhile too, so that one can be measured."""
        with contextlib.ExitStack() as stack:
            with self._changing:
                self._quiet = stack
                for host in self._hosts - {but.host}:
                    stack.enter_context(host.paused())
            try:
                yield
            finally:
                with self._changing:
                    self._quiet = None

    def close(self) -> None:
        """End all processes; whoever waits for one learns that it died."""
        with self._changing:
            self.closed = True
            hosts, self._hosts = self._hosts, set()
        try:
            for host in hosts:
                host.close()
        except BaseException:  # Ctrl-C once more
            for host in hosts:
                host.kill()
            raise

    def __enter__(self) -> "Launcher":
        """Close at the end of the `with` block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _keep(self, host: Host) -> None:
        with self._changing:
            if not self.closed:
                self._hosts.add(host)
                if self._quiet is not None:
                    self._quiet.enter_context(host.paused())
                return
        host.close()  # as the others, by another thread

    def _converted(self, plan: Plan) -> Path:
        if (known := self.conversions.known(plan)) is not None:
            return known
        if find_engine(plan.engine).compiled:
            return self._compiled(plan)
        with self._converting:
            if (known := self.conversions.known(plan)) is not None:  # another thread has just made it
                return known
            return Path(self._ask_converter("convert", plan))

    def _compiled(self, plan: Plan) -> Path:
        """Compile in a process that keeps no other plan from being converted meanwhile."""
        with self._compiling, tempfile.TemporaryDirectory(dir=self._scratch) as source:
            if (known := self.conversions.known(plan)) is not None:
                return known
            with self._converting:
                self._ask_converter("convert_to_compile", plan, source=source)
            folder, compiler = self.conversions.place(plan), Child(**self._settings)
            self._keep(compiler)
            try:
                compiler.ask("compile_converted", plan=plan.model_dump_json(), source=source, folder=str(folder))
            except TrialError as error:
                raise error.named(plan, ", while it was compiled") from error
            finally:
                self._end(compiler)
            return folder

    def _ask_converter(self, request: str, plan: Plan, **arguments: str) -> Any:
        """What the one that converts answers; the caller sees to it that nobody else asks."""
        try:
            if self._converter is None:
                self._converter = self._new_converter()
            return self._converter.ask(request, plan=plan.model_dump_json(), **arguments)
        except TrialError as error:
            if error.status is not Status.REFUSED and self._converter is not None:  # it has died
                self._end(self._converter)
                self._converter = None
            raise error.named(plan, ", while it was converted") from error

    def _new_converter(self) -> Child:
        if self._cannot_open is not None:  # nor could it now
            raise self._cannot_open
        child = Child(**self._settings)
        self._keep(child)
        try:
            child.ask(
                "prepare",
                origin=self._origin,
                weights=str(self._weights),
                signature=self._servable.signature.model_dump_json(),
                cache=str(self.conversions.cache),
                representative=str(self._representative) if self._representative is not None else None,
                fingerprint=self.conversions.fingerprint,
            )
        except TrialError as error:
            self._end(child)
            if error.status is Status.REFUSED:
                self._cannot_open = error
            raise
        return child

    def _end(self, host: Host) -> None:
        with self._changing:
            self._hosts.discard(host)
        host.close()

"""What engines load: made once from each net, and kept by what it was made from."""

import hashlib
import importlib.metadata
import os
import re
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from tfperf.caching import Uses
from tfperf.engines.building import compile_converted, write_proof
from tfperf.engines.catalog import Engine, find_engine
from tfperf.engines.plan import Plan
from tfperf.errors import EngineError, TfperfError, in_one_line
from tfperf.exports.servable import Servable
from tfperf.files import check_space, writing_folder_once

__all__ = ["Conversions", "fingerprint"]

CALIBRATION_EXAMPLES = 128


class Conversions:
    """The conversions of one net, as it is now. Those that it has given stay in the cache for as long as it lives.

    Attributes:
        cache: folder of all conversions of all nets.
        fingerprint: of the net.
    """

    def __init__(
        self,
        servable: Servable,
        cache: Path,
        representative: Sequence[NDArray[Any]] | None = None,
        known_fingerprint: str | None = None,
    ) -> None:
        """Look at the net; nothing is converted yet.

        Args:
            cache: folder of all conversions of all nets.
            representative: inputs from which `int8_static` takes its scales, (batch, ...) each, in the order of the
                signature; None: random ones, which fit a net whose inputs are normalised.
            known_fingerprint: of the net, where another process has taken it; None: it is taken now.

        Raises:
            ValueError: the net does not take these inputs.
        """
        self._servable, self.cache, self._uses = servable, cache, Uses()
        self._examples = tuple(representative or servable.signature.random_inputs(CALIBRATION_EXAMPLES))
        servable.signature.check(self._examples)
        self.fingerprint = known_fingerprint or fingerprint(servable)

    def folder(self, plan: Plan) -> Path:
        """What the plan's engine loads; made now unless the cache has it.

        Raises:
            EngineError: the engine cannot take this net; names both, and the reason in one line.
            CacheError: others could change what the cache has.
            OSError: the cache cannot be written.
        """
        engine = find_engine(plan.engine)
        engine.check(plan)
        if (known := self.known(plan)) is not None:
            return known
        folder = self.place(plan)
        with writing_folder_once(folder) as aside:
            if engine.compiled:
                with TemporaryDirectory() as source:
                    self.convert(plan, Path(source))
                    compile_converted(Path(source), plan, aside)
            else:
                self.convert(plan, aside)
        self._uses.take(folder)
        return folder

    def convert(self, plan: Plan, folder: Path) -> None:
        """Write the net into a folder, as the plan's engine loads it, or compiles it.

        Raises:
            EngineError: the engine cannot take this net; names both, and the reason in one line.
            OSError: the folder cannot be written, or the disk is full.
        """
        module = find_engine(plan.engine).load_module()
        try:
            write_proof(folder, module.convert(self._servable, plan, self._examples, folder))
        except OSError:
            raise
        except Exception as error:
            check_space(folder, error)
            if isinstance(error, TfperfError):
                raise
            raise EngineError(f"{plan} cannot take the net '{self._servable.name}': {in_one_line(error)}") from error

    def known(self, plan: Plan) -> Path | None:
        """What the plan's engine loads, if the cache has it.

        Raises:
            CacheError: others could change it.
        """
        folder = self.place(plan)
        return folder if self._uses.take(folder) else None

    def place(self, plan: Plan) -> Path:
        """Where the cache has what the plan's engine loads, or will have it."""
        engine = find_engine(plan.engine)
        return self.cache / f"{engine.format}-{self._key(engine, plan, engine.load_module())}"

    def _key(self, engine: Engine, plan: Plan, module: Any) -> str:
        made_from = [self.fingerprint, getattr(module, "CONVERTED_AS", {}).get(plan.precision, plan.precision)]
        made_from += plan.transformations
        if plan.precision == "int8_static":
            made_from += [hashlib.sha256(array.tobytes()).hexdigest() for array in self._examples]
        made_from += _releases(engine, plan)
        if plan.fixed_batch is not None:
            made_from.append(f"batch {plan.batch}")
        if engine.fixed_batch:
            made_from += [f"batch {plan.batch}", f"threads {plan.threads}"]
        if (target := getattr(module, "target", None)) is not None and (machine := target(plan)):
            made_from.append(machine)
        return hashlib.sha256("\n".join(made_from).encode()).hexdigest()[:32]


def _releases(engine: Engine, plan: Plan) -> list[str]:
    """Name and version of each package whose code decides what is made; a new version makes it anew."""
    packages = engine.conversion_packages(plan.precision)
    releases = [f"{package} {importlib.metadata.version(package)}" for package in packages]
    return [*releases, engine.release] if engine.release else releases


def fingerprint(servable: Servable) -> str:
    """SHA-256 of what a net computes: its graph in float32, with the values of its variables and constants."""
    traced = servable.trace()
    digest = hashlib.sha256(_graph_words(traced.graph).encode())
    variables = {id(variable.handle): variable for variable in traced.variables}
    for captured in traced.captured_inputs:  # in the order of their use; that of `variables` is another in each process
        value = variables.get(id(captured), captured)
        if value is captured and captured.dtype in (tf.resource, tf.variant):
            digest.update(os.urandom(32))  # a lookup table, into which nobody can look: the net is like no other
        else:
            digest.update(tf.io.serialize_tensor(tf.convert_to_tensor(value)).numpy())
    digest.update(servable.signature.model_dump_json().encode())
    return digest.hexdigest()


def _graph_words(graph: Any) -> str:
    """A graph without the counters of the process, which are in the names of its functions and of what it captured."""

    def age(function: Any) -> tuple[int, str]:
        name = function.signature.name
        return int(re.search(r"\d*$", name)[0] or 0), name  # type: ignore[index]

    definition = graph.as_graph_def()
    functions = sorted(definition.library.function, key=age)
    words = "".join(map(str, [*definition.node, *functions]))
    for index, tensor in enumerate(graph.internal_captures):
        words = words.replace(f'"{tensor.op.name}"', f'"captured {index}"')
    for index, function in enumerate(functions):
        words = re.sub(rf"{re.escape(function.signature.name)}(?!\d)", f"function {index}", words)
    return words

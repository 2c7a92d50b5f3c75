"""From what a user types to a net: a name of get_net, code, a .keras file, or a SavedModel."""

import contextlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import keras

from tfperf.errors import ExportError, in_one_line
from tfperf.exports.keras_file import read_keras_file
from tfperf.exports.keras_nets import recording_first_calls
from tfperf.exports.servable import Servable
from tfperf.exports.signature import SIGNATURE_NAME
from tfperf.nets import NAMES, get_net

__all__ = ["FORMS", "Named", "call_named", "find_named", "open_model"]

FORMS = f"a net ({', '.join(NAMES)}), file.py:callable, module:callable, a .keras file, or a SavedModel's folder"
"""What a MODEL on the command line may be."""


def open_model(
    model: str | keras.Model,
    *,
    signature: str | None = None,
    seed: int = 0,
    example: Any = None,
    around: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
) -> Servable:
    """The net that MODEL means.

    Args:
        model: a `keras.Model`, or one of `FORMS`. A callable takes nothing and returns a `keras.Model`, or a pair of
            one and example inputs for it, which subclasses need that it does not call itself.
        signature: of a SavedModel; None: "serving_default".
        seed: of the weights of a net by name.
        example: inputs that a `keras.Model` can be called with; needed only by one that knows none of its own.
        around: gives what is entered while the user's own code runs.

    Raises:
        ExportError: there is no such model, it is not one, or its code fails; the message is one line.
        TypeError: neither a string nor a Keras model.
    """
    if isinstance(model, keras.Model):
        return Servable.from_net(model, None if getattr(model, "inputs", None) else example)
    if not isinstance(model, str):
        raise TypeError(f"expected a keras.Model, or what names one. Received: {type(model).__name__}")
    path = Path(model)
    is_name = model in NAMES  # a folder of that name beside it is ./mlp
    if signature is not None and (is_name or not path.is_dir()):
        raise ExportError(f"expected a SavedModel's folder for the signature {signature}. Received: {model}")
    if is_name:
        return Servable.from_net(get_net(model, seed=seed))
    if path.is_dir():
        return Servable.from_saved_model(path, signature or SIGNATURE_NAME, name=_name_of(path))
    if path.suffix == ".keras":
        return Servable.from_net(read_keras_file(path), name=path.stem)
    with recording_first_calls() as first_calls:
        with around():
            made = call_named(find_named(model))
        net, example = _net_of(made, model)
    return Servable.from_net(net, example, called_with=first_calls.get(net, ()))


class Named(NamedTuple):
    """What file.py:name or module:name means."""

    words: str
    """The whole of it."""
    value: Any


def find_named(words: str, forms: str = FORMS) -> Named:
    """The function, or another value, that file.py:name or module:name means; the file or module runs.

    Args:
        forms: what the command line takes there, for the error.

    Raises:
        ExportError: there is no such thing, or its code fails; the message is one line.
    """
    place, colon, name = words.rpartition(":")
    if not colon or not place or not name:
        missing = "" if Path(words).exists() else ", which does not exist"
        raise ExportError(f"expected {forms}. Received: {words}{missing}")
    module = _load_file(Path(place)) if place.endswith(".py") else _import(place, forms)
    if not hasattr(module, name):
        public = [one for one, value in vars(module).items() if callable(value) and not one.startswith("_")]
        known = ", ".join(public[:10]) or "none"
        raise ExportError(f"expected a function of {module.__name__} ({known}). Received: {name}")
    return Named(words, getattr(module, name))


def call_named(named: Named) -> Any:
    """What a function of the user's gives; a model, which can be called too, is given as it is.

    Raises:
        ExportError: its code fails; the message is one line.
    """
    try:
        return named.value() if callable(named.value) and not isinstance(named.value, keras.Model) else named.value
    except Exception as error:
        raise ExportError(f"{named.words} fails: {_where(error)}") from error


def _name_of(folder: Path) -> str:
    """The name of a SavedModel: its folder's, or the folder's above it where its own is a version."""
    resolved = folder.resolve()
    return resolved.parent.name if resolved.name.isdecimal() else resolved.name


def _load_file(path: Path) -> ModuleType:
    """Run a file as a module; it finds modules beside it, as when Python runs it."""
    if not path.is_file():
        raise ExportError(f"expected a Python file, {path} does not exist")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # where its classes say that they are from
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ExportError(f"{path} fails: {_where(error)}") from error
    return module


def _import(name: str, forms: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ExportError(f"expected {forms}. Received: {name}, which is no module")
    sys.path.insert(0, str(Path.cwd()))  # as `python -m`
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ExportError(f"expected a module that can be imported, {error.name} is not found") from error
    except Exception as error:
        raise ExportError(f"module {name} fails: {_where(error)}") from error


def _net_of(made: Any, model: str) -> tuple[keras.Model, Any]:
    """What the user's function made: the net and, or None, example inputs."""
    net, example = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(net, keras.Model):
        raise ExportError(
            f"expected {model} to return a keras.Model, or one with example inputs. Received: {type(net).__name__}"
        )
    return net, example


def _where(error: Exception) -> str:
    """An error of the user's code in one line, with its place."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{in_one_line(error)} ({last.filename}:{last.lineno})"

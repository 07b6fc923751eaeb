"""Which model is served, and every reason not to that can be known before a process is started for it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from keepwarm.backend.script import read_script
from keepwarm.cli.embedded_model import MODEL_NAME, find_embedded_model
from keepwarm.cli.serve_settings import ServeSettings
from keepwarm.core.errors import BadModel, BadSetting
from keepwarm.engine.checkpoint import inspect_checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenModel:
    """A file or folder, and the name clients use."""

    path: Path
    name: str


def choose_model(settings: ServeSettings) -> ChosenModel:
    """The model named by the settings, or the embedded one. Reads names and sizes, no weights.

    Raises `BadModel` for one that is missing, incomplete or of a kind not supported, `BadSetting` for
    a context it was not made for, for a script that cannot be read, or where there is no engine to run it.
    """
    if settings.script is not None:
        read_script(str(settings.script.expanduser()))
    elif settings.engine == "scripted":
        return ChosenModel(path=Path("/dev/null"), name=settings.served_model_name or "scripted")
    if settings.model is None:
        chosen = ChosenModel(path=find_embedded_model(), name=settings.served_model_name or MODEL_NAME)
    else:
        path = settings.model.expanduser().absolute()
        chosen = ChosenModel(path=path, name=settings.served_model_name or path.stem)
    if not chosen.path.exists():
        raise BadModel(f"--model {settings.model}: no such file or folder")
    if not is_installed("tokenizers" if settings.script else "torch"):
        raise BadSetting("this installation has no engine: run `pip install 'keepwarm[engine]'`")
    if settings.script is None:  # a script has no positions to run out of
        _check(chosen.path, settings.max_model_len)
    return chosen


def _check(path: Path, max_model_len: int | None) -> None:
    spec = inspect_checkpoint(str(path))
    if max_model_len is not None and max_model_len > spec.max_position:
        raise BadSetting(
            f"--max-model-len {max_model_len}: this model was made for up to {spec.max_position} tokens"
        )


def is_installed(package: str) -> bool:
    """Whether it could be imported; it is not."""
    try:
        return find_spec(package) is not None  # found, not imported
    except ModuleNotFoundError:
        return False

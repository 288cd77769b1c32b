"""Finding an engine and loading a policy through it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final, cast

from sidecar.config.faults import did_you_mean
from sidecar.policy import files
from sidecar.policy.guard import TIMEOUT, Guarded
from sidecar.ports.policy import (
    EngineOptions,
    PolicyEngine,
    PolicyErrors,
    PolicyFault,
)

GROUP: Final = "sidecar.policy_engines"
BUILT_IN: Final = ("cel", "celpy")


def load(
    paths: Sequence[Path], *, engine: str, shipped: Sequence[str], options: EngineOptions
) -> Guarded:
    """See :func:`sidecar.policy.load`."""
    found = select(paths, shipped)
    empty = tuple(_empty(path) for path in paths if not _holds(path, found))
    if engine in BUILT_IN:
        from sidecar.policy.engine import CelEngine

        native = CelEngine(options, expressions=engine)
        policy = native.load(found)
        # Its work is bounded by its own budget; a thread would cost more than the decision.
        return Guarded(policy, timeout=None, warnings=(*empty, *native.warnings))
    maker = outside(engine)
    try:
        made = cast("PolicyEngine", maker(options)).load(found)
    except PolicyErrors:
        raise
    except Exception as error:
        raise PolicyErrors([_fault(engine, f"failed to load ({type(error).__name__})")]) from error
    if not callable(getattr(made, "decide", None)):
        raise PolicyErrors([_fault(engine, "gave something that is no policy")])
    guarded = Guarded(made, timeout=TIMEOUT, warnings=empty)
    if not guarded.revision:
        # Approvals end when it changes, and records name it.
        raise PolicyErrors([_fault(engine, "gave a policy without a revision")])
    return guarded


def _holds(path: Path, found: Sequence[Path]) -> bool:
    return any(each == path or path in each.parents for each in found)


def _empty(path: Path) -> PolicyFault:
    message = "holds no policy: there is no .yaml or .yml file here, or only tests"
    return PolicyFault(str(path), 0, 0, "", message, True, "file")


def select(paths: Sequence[Path], shipped: Sequence[str]) -> list[Path]:
    """The policy files of a load: the shipped ones named, then those of the paths; no tests.

    Raises:
        PolicyErrors: every file that is not there.
    """
    faults: list[PolicyFault] = []
    own = [files.shipped_file(name) for name in shipped]
    for name, path in zip(shipped, own, strict=True):
        if not path.is_file():
            known = [each.stem for each in files.shipped_folder().glob("*.yaml")]
            near = did_you_mean(name, (each for each in known if not each.endswith(files.TEST)))
            message = f"the shipped policy {name!r} is not there{near}"
            faults.append(PolicyFault(str(path), 0, 0, "", message, code="file"))
    try:
        found = files.find(paths)
    except PolicyErrors as errors:
        faults += errors.faults
        found = []
    if faults:
        raise PolicyErrors(faults)
    return [*own, *(path for path in found if not files.is_test(path))]


def outside(name: str) -> Callable[[EngineOptions], object]:
    """What makes an engine that somebody else wrote.

    Raises:
        PolicyErrors: there is no such engine, or it cannot be imported.
    """
    known = {point.name: point for point in entry_points(group=GROUP)}
    if name not in known:
        near = did_you_mean(name, (*BUILT_IN, *known))
        there = ", ".join(sorted({*BUILT_IN, *known}))
        raise PolicyErrors([_fault(name, f"there is no such policy engine{near or f': {there}'}")])
    try:
        return cast("Callable[[EngineOptions], object]", known[name].load())
    except Exception as error:
        # Whatever importing somebody's package raises is a reason not to start.
        message = f"cannot be imported ({type(error).__name__}: {error})"
        raise PolicyErrors([_fault(name, message)]) from error


def _fault(engine: str, message: str) -> PolicyFault:
    return PolicyFault(f"policy.engine {engine}", 0, 0, "", message, code="engine")

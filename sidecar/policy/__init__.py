"""Policies: files to decisions.

``load`` gives a policy that is total: whatever goes wrong in deciding is a deny. ``PolicyHolder``
keeps the one in force and takes over edited files. Heavy modules are imported when first used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.config.types import SHIPPED
from sidecar.ports.policy import EngineOptions, PolicyErrors, PolicyFault

if TYPE_CHECKING:
    from sidecar.policy.guard import Guarded

DEFAULT_OPTIONS = EngineOptions()

__all__ = ["SHIPPED", "EngineOptions", "PolicyErrors", "PolicyFault", "load"]


def load(
    paths: Sequence[Path] = (),
    *,
    engine: str = "cel",
    shipped: Sequence[str] = SHIPPED,
    options: EngineOptions = DEFAULT_OPTIONS,
) -> Guarded:
    """Compile and check the policies of files and folders, the shipped ones before them.

    Of a folder, every ``*.yaml`` and ``*.yml`` below it counts, in the order of their paths,
    but for hidden ones; files called ``*_test.yaml`` are tests and not loaded here.

    Raises:
        PolicyErrors: every error of every file, a missing file and an unknown engine too.
    """
    from sidecar.policy.engines import load as loading

    return loading(paths, engine=engine, shipped=shipped, options=options)

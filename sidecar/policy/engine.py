"""The built-in engine: YAML files with rules in CEL."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from sidecar.policy import document, files, shadows
from sidecar.policy.compiler import Compiled, Compiler
from sidecar.policy.decide import CelPolicy
from sidecar.policy.files import PolicyFile
from sidecar.ports.policy import EngineOptions, ExpressionEngine, PolicyErrors, PolicyFault

MOST_FAULTS: Final = 500


class CelEngine:
    """``PolicyEngine`` for one set of options. ``warnings`` are those of the last load."""

    def __init__(
        self,
        options: EngineOptions,
        *,
        expressions: str = "cel",
    ) -> None:
        """``expressions`` is what evaluates: ``cel`` (ours) or ``celpy`` (the reference)."""
        self._options = options
        self._name = expressions
        self.warnings: tuple[PolicyFault, ...] = ()

    def load(self, paths: Sequence[Path]) -> CelPolicy:
        """See :class:`sidecar.ports.policy.PolicyEngine`. Files below our own are told as such."""
        own = files.shipped_folder()
        read: list[PolicyFile] = []
        for path in paths:
            read += files.read([path], shipped=path.parent == own)
        return self.compile(read)

    def compile(self, read: Sequence[PolicyFile]) -> CelPolicy:
        """A policy of files that have been read.

        Raises:
            PolicyErrors: every error of every file.
        """
        compiled, faults = compile_files(read, self._options, self._expressions())
        errors = [fault for fault in faults if not fault.warning]
        if errors:
            raise PolicyErrors(faults[:MOST_FAULTS])
        self.warnings = tuple(faults)
        rules = [rule for each in compiled for rule in each.rules]
        default: Literal["allow", "deny"] = self._options.default
        return CelPolicy(rules, default=default, revision=files.revision(read, self._name, default))

    def _expressions(self) -> ExpressionEngine | None:
        if self._name != "celpy":
            return None
        from sidecar.policy.cel.celpy_reference import CelpyEngine

        return CelpyEngine(complete=True)


def compile_files(
    read: Sequence[PolicyFile], options: EngineOptions, reference: ExpressionEngine | None = None
) -> tuple[list[Compiled], list[PolicyFault]]:
    """The files compiled, and everything that is wrong with them, file by file."""
    compiled: list[Compiled] = []
    faults: list[PolicyFault] = []
    named: dict[str, str] = {}
    for scope, file in enumerate(read, 1):
        try:
            text = file.text
        except PolicyErrors as error:
            faults += error.faults
            continue
        parsed, of_file = document.read(file.shown, text)
        if parsed is not None:
            if parsed.name in named:
                message = f'the policy "{parsed.name}" is in {named[parsed.name]} already'
                of_file.append(
                    PolicyFault(file.shown, 1, 1, "", f"name: {message}; rename one", code="file")
                )
            named.setdefault(parsed.name, file.shown)
            compiled.append(Compiler(parsed, scope, of_file, reference, options.schemas).compile())
        faults += sorted(of_file, key=lambda fault: (fault.line, fault.column))
    if all(fault.warning for fault in faults):
        faults += shadows.warnings(compiled)
    return compiled, faults

"""The expression engine: CEL, parsed with cel-python's grammar, evaluated by closures.

``compile_text(text, env) -> Program``; ``Program(given)`` is a value or a ``CelError``, and
``Program.test(frame)`` exactly true, false or a ``CelError``.
"""

from sidecar.policy.cel.env import OPEN, Environment
from sidecar.policy.cel.errors import CelError, CelSyntaxError, CompileError, Finding
from sidecar.policy.cel.frame import Frame, new_frame
from sidecar.policy.cel.limits import Budget
from sidecar.policy.cel.parse import parse
from sidecar.policy.cel.program import CelEngine, Program, compile_text

__all__ = [
    "OPEN",
    "Budget",
    "CelEngine",
    "CelError",
    "CelSyntaxError",
    "CompileError",
    "Environment",
    "Finding",
    "Frame",
    "Program",
    "compile_text",
    "new_frame",
    "parse",
]

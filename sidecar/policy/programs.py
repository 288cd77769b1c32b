"""The condition of a rule, whichever expression engine evaluates it.

Both are parsed, checked and asked for what they read by our own engine: what cel-python can
parse, ours can.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol, TypeAlias

from sidecar.policy.cel.compile import DEFINITION_PREFIX
from sidecar.policy.cel.env import Environment
from sidecar.policy.cel.errors import CelError
from sidecar.policy.cel.frame import BUDGET, Frame
from sidecar.policy.cel.nodes import Node
from sidecar.policy.cel.program import Program
from sidecar.policy.cel.references import references
from sidecar.policy.cel.specialise import fold
from sidecar.policy.cel.values import Value, type_name
from sidecar.policy.positions import Places
from sidecar.ports.policy import Expression

VARIABLES: Final = "variables."
"""What stands before the name of a policy's own variable."""


class Runnable(Protocol):
    """What a rule needs of an expression."""

    @property
    def env(self) -> Environment:
        """What it may name."""
        ...

    def test(self, frame: Frame) -> bool | CelError:
        """Exactly true, false or an error, which is placed in the file."""
        ...

    def evaluate(self, frame: Frame) -> Value:
        """Any value, or an error."""
        ...

    @property
    def constant(self) -> bool:
        """Whether no input changes the value; then it is that of an empty frame."""
        ...

    @property
    def references(self) -> frozenset[str]:
        """The dotted names of the input that it reads."""
        ...

    def specialise(self, known: Mapping[str, Value], env: Environment | None = None) -> Runnable:
        """The same with some of its input known."""
        ...


Parsed: TypeAlias = tuple[str, Node]
"""An expression's text, and its tree with the places of its file."""


def native(parsed: Parsed, env: Environment) -> Program:
    """The expression in our own engine; it has been checked before."""
    text, tree = parsed
    return Program(text, tree, fold(tree, env), env)


class Reference:
    """An expression that cel-python evaluates.

    A policy's own variables are evaluated before the expression, each at most once a decision,
    and handed in as a map. Nothing is specialised.
    """

    __slots__ = ("_expression", "_places", "_variables", "env", "text", "tree")

    def __init__(
        self,
        parsed: Parsed,
        env: Environment,
        expression: Expression,
        variables: Mapping[str, Reference],
        places: Places,
    ) -> None:
        """``variables`` are those that the expression reads, by their bare names."""
        self.text, self.tree = parsed
        self.env = env
        self._expression = expression
        self._variables = variables
        self._places = places

    constant = False

    @property
    def references(self) -> frozenset[str]:
        """As the other engine finds them."""
        return references(self.tree, self.env)

    def specialise(self, known: Mapping[str, Value], env: Environment | None = None) -> Reference:
        """Itself."""
        del known, env
        return self

    def evaluate(self, frame: Frame) -> Value:
        """The value, or an error; a variable's error is the expression's."""
        given = {
            name: value
            for name, value in frame.items()
            if name != BUDGET and not name.startswith(DEFINITION_PREFIX)
        }
        if self._variables:
            values: dict[str, Value] = {}
            for name, variable in self._variables.items():
                key = f"{DEFINITION_PREFIX}{VARIABLES}{name}"
                if key not in frame:
                    frame[key] = variable.evaluate(frame)
                if type(frame[key]) is CelError:
                    return frame[key]
                values[name] = frame[key]
            given[VARIABLES.rstrip(".")] = values
        value = self._expression(given)
        if type(value) is CelError:
            return self._placed(value.kind, value.line, value.column, value.message)
        return value

    def test(self, frame: Frame) -> bool | CelError:
        """As the other engine's: exactly true, false or an error."""
        value = self.evaluate(frame)
        if value is True or value is False or type(value) is CelError:
            return value
        message = f"a rule has to be true or false, this is {type_name(value)}"
        return self._placed("not_boolean", 1, 1, message)

    def _placed(self, kind: str, line: int, column: int, message: str) -> CelError:
        return CelError(kind, *self._places(line, column), message)

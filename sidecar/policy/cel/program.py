"""A compiled expression: the engine's public object. Immutable, safe from any thread."""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.policy.cel.compile import compile_tree
from sidecar.policy.cel.env import OPEN, Environment
from sidecar.policy.cel.errors import CelError, as_value
from sidecar.policy.cel.explain import Explanation, explain
from sidecar.policy.cel.frame import Frame, new_frame
from sidecar.policy.cel.limits import Budget
from sidecar.policy.cel.nodes import Literal, Node
from sidecar.policy.cel.parse import parse
from sidecar.policy.cel.references import references
from sidecar.policy.cel.specialise import fold, specialised
from sidecar.policy.cel.values import Value, type_name


class Program:
    """One expression in one environment.

    ``text`` is what was compiled, ``tree`` what is left of it after folding.
    """

    __slots__ = ("_code", "_source", "env", "text", "tree")

    def __init__(self, text: str, source: Node, tree: Node, env: Environment) -> None:
        self.text = text
        self.tree = tree
        self.env = env
        self._source = source
        self._code = compile_tree(tree, env)

    def __call__(self, given: Mapping[str, Value]) -> Value:
        """The value for an input, or a ``CelError``; with a budget of its own."""
        return self.evaluate(new_frame(given))

    def evaluate(self, frame: Frame) -> Value:
        """The value in a frame that the expressions of a decision share, or a ``CelError``."""
        try:
            return self._code(frame)
        except Exception as error:  # noqa: BLE001 - an expression ends in a value or an error
            return as_value(error, self.tree.span.line, self.tree.span.column)

    def test(self, frame: Frame) -> bool | CelError:
        """For rules: exactly true, false or an error."""
        value = self.evaluate(frame)
        if value is True or value is False or type(value) is CelError:
            return value
        span = self.tree.span
        message = f"a rule has to be true or false, this is {type_name(value)}"
        return CelError("not_boolean", span.line, span.column, message)

    @property
    def constant(self) -> bool:
        """Whether the value is known without any input: then it is ``self({})``."""
        return isinstance(self.tree, Literal)

    @property
    def references(self) -> frozenset[str]:
        """The dotted names of the input that are still read."""
        return references(self.tree, self.env)

    def specialise(self, known: Mapping[str, Value], env: Environment | None = None) -> Program:
        """The program with some of its input known: see ``specialise.fold``.

        ``env`` is ``specialise.specialised(self.env, known)``; who specialises many programs
        makes it once.
        """
        env = specialised(self.env, known) if env is None else env
        return Program(self.text, self._source, fold(self.tree, env, known), env)

    def explain(self, given: Mapping[str, Value], budget: Budget | None = None) -> Explanation:
        """Evaluate the expression as it was written, and tell the value of each part."""
        return explain(self.text, self._source, self.env, given, budget)


def compile_text(text: str, env: Environment = OPEN) -> Program:
    """Parse, fold and compile one expression.

    Raises:
        CelSyntaxError: it is no expression.
        CompileError: it names what the environment does not have.
    """
    source = parse(text)
    compile_tree(source, env)  # folding may drop a branch, but not what is wrong in it
    return Program(text, source, fold(source, env), env)


class CelEngine:
    """``ExpressionEngine`` of this engine, for one environment."""

    name = "cel"

    def __init__(self, env: Environment = OPEN) -> None:
        self.env = env

    def compile(self, text: str) -> Program:
        """See ``compile_text``."""
        return compile_text(text, self.env)

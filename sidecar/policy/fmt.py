"""Policy files in one shape: keys in one order, no stray space, one line end.

Works on lines, so that comments and the way in which values are written stay. What it cannot
be sure of it leaves as it is; a result that would not read the same is thrown away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sidecar.config import yamltext
from sidecar.config.nodes import Mapping, Node, Scalar, Stop, plain
from sidecar.config.nodes import Sequence as Items

_ROOT: Final = (
    "apiVersion",
    "kind",
    "name",
    "description",
    "mode",
    "match",
    "policies",
    "shipped",
    "default",
    "variables",
    "rules",
    "input",
    "inputs",
    "tests",
)
_ITEM: Final = (
    "id",
    "name",
    "on",
    "phase",
    "effect",
    "mode",
    "label",
    "redact",
    "when",
    "message",
    "expr",
    "use",
    "input",
    "expect",
)
_LISTS: Final = ("variables", "rules", "tests")


def formatted(text: str) -> str:
    """The text in the one shape; as it is where it is no YAML."""
    before = _tree(text)
    if before is None:
        return text
    tidy = _tidy(text)
    for ordered in (_ordered(tidy), tidy):
        after = _tree(ordered)
        if after is not None and _same(before, after):
            return ordered
    return text


def _tree(text: str) -> Node | None:
    faults: list[str] = []
    try:
        root = yamltext.read(text, lambda line, column, message: faults.append(message))
    except Stop:
        return None
    return None if faults else root


def _same(one: Node, other: Node) -> bool:
    """Whether two files say the same: the order of keys says nothing, that of rules does."""
    return plain(one) == plain(other)


def _tidy(text: str) -> str:
    """No space at ends of lines, no runs of empty lines, one line end."""
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    kept: list[str] = []
    for line in lines:
        if line or (kept and kept[-1]):
            kept.append(line)
    while kept and not kept[-1]:
        kept.pop()
    return "\n".join(kept) + "\n"


def _ordered(text: str) -> str:
    root = _tree(text)
    if not isinstance(root, Mapping):
        return text
    lines = text.split("\n")[:-1]
    # From the end of the file, so that places above stay where they are.
    for name, _, value in reversed(list(root)):
        if name in _LISTS and isinstance(value, Items):
            for item in reversed(value.items):
                if isinstance(item, Mapping):
                    lines = _sorted(lines, item, _ITEM, _end_of(item, lines))
    text = "\n".join(lines) + "\n"
    again = _tree(text)
    if not isinstance(again, Mapping):
        return text
    lines = text.split("\n")[:-1]
    end = len(lines)
    # What is said at the very end is about the file, not about its last key.
    while end > again.line and _is_comment(lines[end - 1]):
        end -= 1
    return "\n".join(_sorted(lines, again, _ROOT, end)) + "\n"


def _end_of(item: Mapping, lines: Sequence[str]) -> int:
    """The line (counted from 0) after an item of a block list: what is indented less than it."""
    for at in range(item.line, len(lines)):
        line = lines[at]
        bare = line.lstrip()
        if bare and not bare.startswith("#") and len(line) - len(bare) < item.column - 1:
            end = at
            break
    else:
        end = len(lines)
    # Comments and empty lines before the next item are the next item's.
    while end > item.line and (not lines[end - 1].strip() or lines[end - 1].lstrip()[0] == "#"):
        end -= 1
    return end


def _sorted(lines: Sequence[str], mapping: Mapping, order: Sequence[str], end: int) -> list[str]:
    """The lines with the keys of a block mapping in order; each key keeps what stands above it."""
    keys = [key for _, key, _ in mapping]
    starts = [key.line - 1 for key in keys]
    in_block = all(key.column == mapping.column for key in keys)
    if len(starts) < 2 or not in_block or starts != sorted(set(starts)):
        return list(lines)
    firsts = [starts[0], *(_with_comments(lines, at, starts[0]) for at in starts[1:])]
    chunks = [
        (_rank(key, order), list(lines[first:last]))
        for key, first, last in zip(keys, firsts, [*firsts[1:], end], strict=True)
    ]
    ordered = [chunk for _, chunk in sorted(chunks, key=lambda each: each[0])]
    if [chunk for _, chunk in chunks] == ordered:
        return list(lines)
    # The first key of a list's item shares its line with the dash.
    lead = lines[starts[0]][: mapping.column - 1]
    if lead.strip() == "-":
        indent = " " * len(lead)
        for _, chunk in chunks:
            at = next(i for i, line in enumerate(chunk) if not _is_comment(line))
            chunk[at] = indent + chunk[at][len(indent) :]
        if any(_is_comment(line) for line in ordered[0]):
            return list(lines)
        ordered[0][0] = lead + ordered[0][0][len(lead) :]
    return [
        *lines[: starts[0]],
        *(line for chunk in ordered for line in chunk),
        *lines[end:],
    ]


def _with_comments(lines: Sequence[str], at: int, least: int) -> int:
    """Where a key begins: at the comments right above it."""
    while at - 1 > least and _is_comment(lines[at - 1]):
        at -= 1
    return at


def _is_comment(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _rank(key: Scalar, order: Sequence[str]) -> int:
    return order.index(key.text) if key.text in order else len(order)

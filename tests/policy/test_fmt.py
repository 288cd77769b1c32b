"""Formatting: one shape, nothing lost, the same meaning, and twice is the same as once."""

from __future__ import annotations

import textwrap

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sidecar.config import yamltext
from sidecar.config.nodes import Stop, plain
from sidecar.policy.files import shipped_folder
from sidecar.policy.fmt import formatted

UNTIDY = """\
kind: Policy
# which version
apiVersion: sidecar/v1   \t

rules:
  # why the first
  - effect: deny
    # because
    when: >-
      tool.gated

      && args.x == 1
    id: first   # a name
    on: call


  # why the second
  - {id: second, on: call, effect: deny, when: "true"}
  - when: |
      # no comment of YAML's
      tool.gated
    message: '"x"'
    id: third
    on: [call]
    effect: ask
name: p


# the end
"""

TIDY = """\
# which version
apiVersion: sidecar/v1
kind: Policy
name: p

rules:
  # why the first
  - id: first   # a name
    on: call
    effect: deny
    # because
    when: >-
      tool.gated

      && args.x == 1

  # why the second
  - {id: second, on: call, effect: deny, when: "true"}
  - id: third
    on: [call]
    effect: ask
    when: |
      # no comment of YAML's
      tool.gated
    message: '"x"'

# the end
"""


def meaning(text: str) -> object:
    root = yamltext.read(text, lambda *_: None)
    return None if root is None else plain(root)


def test_untidy() -> None:
    assert formatted(UNTIDY) == TIDY
    assert formatted(TIDY) == TIDY
    assert meaning(TIDY) == meaning(UNTIDY)


@pytest.mark.parametrize(
    "path", sorted(shipped_folder().glob("*.yaml")), ids=lambda path: path.name
)
def test_the_shipped_files_are_tidy(path: object) -> None:
    text = path.read_text()  # type: ignore[attr-defined]
    assert formatted(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: p\r\nkind: Policy\r\n", "kind: Policy\nname: p\n"),
        ("a: [", "a: ["),
        ("{name: p, kind: Policy}", "{name: p, kind: Policy}\n"),
        ("", ""),
        # What stands in a text is the author's.
        ("name: p\nwhen: |\n  a  \n  b\n", "name: p\nwhen: |\n  a  \n  b\n"),
        ("name: &n p\nkind: *n\n", "name: &n p\nkind: *n\n"),
        ("- name: x\n", "- name: x\n"),
    ],
)
def test_what_is_left_as_it_is(text: str, expected: str) -> None:
    assert formatted(text) == expected


keys = st.permutations(["apiVersion", "kind", "name", "rules"])
rows = st.lists(st.permutations(["id", "on", "effect", "when"]), max_size=3)
texts = st.sampled_from(["x", "a: b", "'q'", "two\nlines", "trailing \n", "# no", "", "é", " lead"])


@given(keys, rows, st.data(), st.booleans())
def test_any_file_keeps_its_meaning(
    order: list[str], found: list[list[str]], data: st.DataObject, flow: bool
) -> None:
    rules = [{key: data.draw(texts) for key in row} for row in found]
    values = {"apiVersion": "sidecar/v1", "kind": "Policy", "name": "p", "rules": rules}
    text = yaml.safe_dump(
        {key: values[key] for key in order},
        sort_keys=False,
        default_flow_style=flow,
        allow_unicode=True,
    )
    made = formatted(text)
    assert meaning(made) == meaning(text)
    assert formatted(made) == made


@given(st.text(alphabet=st.sampled_from("ab:-[]{}# \n'\"|>&*?"), max_size=80))
def test_any_text_keeps_its_meaning(text: str) -> None:
    made = formatted(text)
    try:
        before = meaning(text)
    except Stop:
        assert made == text
        return
    assert meaning(made) == before


def test_deeper_items_go_along() -> None:
    text = textwrap.dedent(
        """\
        tests:
          - expect:
              decision: deny
              rules:
                - a
            name: x
        kind: PolicyTest
        """
    )
    assert formatted(text) == textwrap.dedent(
        """\
        kind: PolicyTest
        tests:
          - name: x
            expect:
              decision: deny
              rules:
                - a
        """
    )

"""Pages: complete, the same every time, and walks that survive what changes under them."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.catalog import BadCursor, Catalog, Pages, View
from sidecar.model import Entries
from tests.gateway.scripted import config, offers, prompt, resource, template, tool


def catalog_of(there: dict[str, list[str]], entries: int = 2, size: int = 1 << 20) -> Catalog:
    catalog = Catalog(pages=Pages(entries, size))
    catalog.place([config(name) for name in there])
    for name, tools in there.items():
        catalog.update(name, offers(tools))
    return catalog


def walk(catalog: Catalog, kind: str = "tools", view: View | None = None) -> list[list[str]]:
    pages, cursor = [], None
    while True:
        page = catalog.page(kind, view or View(), cursor)  # type: ignore[arg-type]
        key = {"resources": "uri", "templates": "uriTemplate"}.get(kind, "name")
        pages.append([item[key] for item in json.loads(page.items)])
        cursor = page.cursor
        if cursor is None:
            return pages


def test_pages_hold_everything_in_the_order_of_servers_and_then_of_each() -> None:
    catalog = catalog_of({"b": ["z", "a"], "a": ["q", "p", "o"]})
    assert walk(catalog) == [["b__z", "b__a"], ["a__q", "a__p"], ["a__o"]]
    assert walk(catalog, view=View(("a",))) == [["a__q", "a__p"], ["a__o"]]
    assert walk(catalog, view=View(server="a")) == [["q", "p"], ["o"]]
    assert walk(catalog, view=View(("b",), server="a")) == [[]]
    assert walk(Catalog()) == [[]]


def test_a_page_is_cut_by_size_and_holds_one_entry_at_least() -> None:
    catalog = catalog_of({}, entries=100, size=300)
    catalog.place([config("s")])
    tools = [tool("a"), tool("big", description="x" * 1000), tool("b"), tool("c")]
    catalog.update("s", offers(tools))
    assert walk(catalog) == [["s__a"], ["s__big"], ["s__b", "s__c"]]


def test_prompts_resources_and_templates_are_paged_too() -> None:
    catalog = catalog_of({"a": [], "b": []})
    catalog.update(
        "a",
        Entries(
            prompts=(prompt("p"), prompt("q.r")),
            resources=tuple(resource(f"x://{i}") for i in range(3)),
            templates=(template("x://{id}"),),
        ),
    )
    catalog.update(
        "b",
        Entries(prompts=(prompt("p"),), resources=(resource("x://1"), resource("x://9"))),
    )
    assert walk(catalog, "prompts") == [["a__p", "a__q_r_62109f81"], ["b__p"]]
    assert walk(catalog, "prompts", View(server="a")) == [["p", "q.r"]]
    # x://1 of b is a's: the first in order owns it.
    assert walk(catalog, "resources") == [["x://0", "x://1"], ["x://2", "x://9"]]
    assert walk(catalog, "resources", View(server="b")) == [["x://1", "x://9"]]
    assert walk(catalog, "templates") == [["x://{id}"]]


def test_a_server_that_is_not_up_is_left_out_and_so_is_what_is_not_offered() -> None:
    catalog = catalog_of({"a": ["x", "y", "z"], "b": ["x"]})
    page = catalog.page("tools", View(), listed=lambda server: server == "a")
    assert [t["name"] for t in json.loads(page.items)] == ["a__x", "a__y"]
    page = catalog.page("tools", View(), offers=lambda entry: entry.key == "x")
    assert [t["name"] for t in json.loads(page.items)] == ["a__x", "b__x"]
    # Nothing that is offered is left, so there is no further page, and no empty one.
    assert page.cursor is None


def test_p9_equal_catalogs_give_equal_bytes_whatever_their_history() -> None:
    there = {"a": ["x", "ns.y"], "b": ["x", "y", "z"]}
    fresh, old = catalog_of(there), catalog_of({"b": ["gone", "z"], "c": ["x"]})
    walk(old)
    old.place([config("a"), config("b")])
    for name, tools in there.items():
        old.update(name, offers(tools))
    cursor = None
    for _ in range(3):
        one, two = fresh.page("tools", View(), cursor), old.page("tools", View(), cursor)
        assert one == two
        cursor = one.cursor
    assert cursor is None


@pytest.mark.parametrize(
    "cursor", ["", "x", "3", "é", "e30", "W10", "a" * 1000, "WyJ0b29scyJd", "bnVsbA", "\x00", "=="]
)
def test_a_cursor_of_somebody_elses_is_refused(cursor: str) -> None:
    with pytest.raises(BadCursor):
        catalog_of({"a": ["x", "y", "z"]}).page("tools", View(), cursor)


@given(st.text(max_size=60))
def test_no_cursor_does_anything_worse_than_being_refused(cursor: str) -> None:
    with contextlib.suppress(BadCursor):
        catalog_of({"a": ["x"]}).page("tools", View(), cursor)


def test_a_cursor_of_one_list_does_not_fit_another() -> None:
    catalog = catalog_of({"a": ["x", "y", "z"]})
    cursor = catalog.page("tools", View()).cursor
    with pytest.raises(BadCursor):
        catalog.page("prompts", View(), cursor)


def test_another_replica_goes_on_behind_the_last_key() -> None:
    there = {"a": ["u", "v", "w"], "b": ["x", "y", "z"]}
    cursor = catalog_of(there).page("tools", View()).cursor
    other = catalog_of({"a": ["new", "u", "v", "w"], "b": ["x", "y", "z"]}, entries=99)
    page = other.page("tools", View(), cursor)
    assert [t["name"] for t in json.loads(page.items)] == ["a__w", "b__x", "b__y", "b__z"]
    without_the_key = catalog_of({"a": ["u", "w"], "b": ["x"]}, entries=99)
    page = without_the_key.page("tools", View(), cursor)
    assert [t["name"] for t in json.loads(page.items)] == ["b__x"]
    without_the_server = catalog_of({"b": ["x", "y", "z"]}, entries=99)
    page = without_the_server.page("tools", View(), cursor)
    assert [t["name"] for t in json.loads(page.items)] == ["b__z"]


def test_a_cursor_shows_nobody_what_they_may_not_see() -> None:
    catalog = catalog_of({"secret": ["u", "v", "w"], "open": ["x"]})
    cursor = catalog.page("tools", View()).cursor
    page = catalog.page("tools", View(("open",)), cursor)
    assert [t["name"] for t in json.loads(page.items)] == ["open__x"]


KEYS = [f"t{i}" for i in range(9)]
lists = st.lists(st.sampled_from(KEYS), unique=True)


@given(st.lists(st.tuples(lists, lists, st.booleans()), min_size=2, max_size=6))
def test_a_walk_meets_every_entry_that_stays_exactly_once(
    states: list[tuple[list[str], list[str], bool]],
) -> None:
    """Between two pages the servers list something else, in another order, or swap places."""
    catalog = Catalog(pages=Pages(2))

    def become(state: tuple[list[str], list[str], bool]) -> None:
        a, b, turned = state
        catalog.place([config(n) for n in (("b", "a") if turned else ("a", "b"))])
        catalog.update("a", offers(a))
        catalog.update("b", offers(b))

    become(states[0])
    seen: list[str] = []
    cursor = None
    passed = [states[0]]
    for state in states[1:] + [states[-1]] * 20:
        page = catalog.page("tools", View(), cursor)
        seen += [item["name"] for item in json.loads(page.items)]
        cursor = page.cursor
        if cursor is None:
            break
        become(state)
        passed.append(state)
    assert cursor is None
    stable_a = set.intersection(*(set(a) for a, _, _ in passed))
    stable_b = set.intersection(*(set(b) for _, b, _ in passed))
    stable = {f"a__{t}" for t in stable_a} | {f"b__{t}" for t in stable_b}
    assert stable <= set(seen)
    assert len(seen) == len(set(seen))

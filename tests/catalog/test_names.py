"""What things are called, and that it never changes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.catalog import Catalog, View, catalog_name
from sidecar.catalog.names import closest, offered, safe_name
from sidecar.model import Entries, Unroutable
from tests.gateway.scripted import config, offers, tool

GRAMMAR = re.compile(r"[A-Za-z0-9_-]{1,64}")
LONG = "a-rather-long-server-name"

servers = st.from_regex(
    r"[A-Za-z0-9]([A-Za-z0-9-]|_(?!_)){0,30}[A-Za-z0-9]", fullmatch=True
).filter(lambda s: "__" not in s and len(s) <= 32)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=90)
tools = st.one_of(texts, st.from_regex(r"[a-z_./-]{1,90}", fullmatch=True))


def catalog_of(offered: dict[str, Entries], order: list[str] | None = None) -> Catalog:
    catalog = Catalog()
    catalog.place([config(name) for name in order or offered])
    for name, entries in offered.items():
        catalog.update(name, entries)
    return catalog


def names(catalog: Catalog, view: View | None = None) -> list[str]:
    return [t.name for t in catalog.tools(view or View())]


# The hashes are what ``printf 'a\0ns.dotted' | sha256sum`` says.
@pytest.mark.parametrize(
    ("own", "name"),
    [
        ("create_issue", "a__create_issue"),
        ("x" * 61, "a__" + "x" * 61),
        ("x" * 62, "a__" + "x" * 52 + "_be54aba5"),
        ("ns.dotted", "a__ns_dotted_5d2452dc"),
        ("a/b", "a__a_b_668861a9"),
        ("ä", "a____e0c8505e"),
        ("", "a__"),
    ],
)
def test_a_name_is_plain_where_it_fits_and_safe_where_not(own: str, name: str) -> None:
    assert catalog_name("a", own) == name


@given(st.lists(st.tuples(servers, tools), min_size=1, max_size=8, unique=True))
def test_names_fit_are_distinct_and_do_not_depend_on_each_other(
    pairs: list[tuple[str, str]],
) -> None:
    made = {pair: catalog_name(*pair) for pair in pairs}
    assert all(GRAMMAR.fullmatch(name) for name in made.values())
    assert len(set(made.values())) == len(pairs)
    assert {pair: catalog_name(*pair) for pair in reversed(pairs)} == made


@given(
    st.dictionaries(servers, st.lists(tools, min_size=1, max_size=4, unique=True), max_size=4),
    st.randoms(),
)
def test_each_name_leads_back_to_its_own_tool_in_any_order_of_servers(
    there: dict[str, list[str]], random: object
) -> None:
    offered = {server: offers(own) for server, own in there.items()}
    forth = catalog_of(offered)
    order = list(offered)
    random.shuffle(order)  # type: ignore[attr-defined]
    back = catalog_of(offered, order)
    assert set(names(forth)) == set(names(back))
    for server, own in there.items():
        for one in own:
            name = catalog_name(server, one)
            for catalog in (forth, back):
                entry = catalog.route_tool(name, View())
                assert (entry.server, entry.key) == (server, one)


def test_c4_names_that_model_apis_refuse() -> None:
    twins = ["t" * 58 + "a1", "t" * 58 + "b2"]
    own = ["n" * 60, "ns.dotted", "a/b", "ä", *twins]
    catalog = catalog_of({LONG: offers(own)})
    listed = names(catalog)
    assert len(set(listed)) == len(own)
    assert all(GRAMMAR.fullmatch(name) for name in listed)
    assert [catalog.route_tool(name, View()).key for name in listed] == own
    assert names(catalog_of({"other": offers(["x"]), LONG: offers(own)}))[1:] == listed


def test_c5_prefixes_that_look_alike_are_two_tools() -> None:
    catalog = catalog_of({"a": offers(["b_x", "echo"]), "a_b": offers(["x", "echo"])})
    assert names(catalog) == ["a__b_x", "a__echo", "a_b__x", "a_b__echo"]
    assert [catalog.route_tool(n, View()).server for n in names(catalog)] == [
        "a",
        "a",
        "a_b",
        "a_b",
    ]


def test_c6_names_stay_when_a_server_comes_and_goes() -> None:
    catalog = catalog_of({"one": offers(["echo", "ns.x"])})
    before = names(catalog)
    catalog.place([config("zero"), config("one")])
    catalog.update("zero", offers(["echo", "ns.x"]))
    assert names(catalog, View(("one",))) == before
    assert catalog.route_tool(before[0], View()).server == "one"
    catalog.remove("zero")
    assert names(catalog) == before
    with pytest.raises(Unroutable):
        catalog.route_tool("zero__echo", View())


def test_of_two_tools_with_one_name_the_first_is_offered_and_one_warning_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    crafted = safe_name("s", "ns.x").removeprefix("s__")
    catalog = catalog_of({"s": offers(["ns.x", crafted, "other"])})
    assert [t.upstream_name for t in catalog.tools()] == ["ns.x", "other"]
    catalog.update("s", offers(["ns.x", crafted, "more"]))
    warnings = [r.getMessage() for r in caplog.records]
    assert len(warnings) == 1
    assert "server s" in warnings[0]
    assert repr(crafted) in warnings[0]


def test_a_tool_that_is_listed_twice_is_offered_once() -> None:
    first, second = tool("x", description="first"), tool("x", description="second")
    (only,) = catalog_of({"s": offers([first, second])}).tools()
    assert b"first" in only.json


@pytest.mark.parametrize("separator", ["", ".", "x", "_x_", " "])
def test_a_separator_that_could_be_part_of_a_name_is_refused(separator: str) -> None:
    with pytest.raises(ValueError, match="separator"):
        Catalog(separator)


@pytest.mark.parametrize(
    ("rest", "kept"),
    [
        ({}, ["list_a", "list_b", "delete"]),
        ({"only": ("list_*",)}, ["list_a", "list_b"]),
        ({"only": ("list_?",), "except_": ("*_b",)}, ["list_a"]),
        ({"except_": ("list_*",)}, ["delete"]),
        ({"only": ()}, []),
        ({"only": ("LIST_*",)}, []),
    ],
)
def test_only_and_except_are_globs_over_the_servers_own_names(
    rest: dict[str, object], kept: list[str]
) -> None:
    catalog = Catalog()
    catalog.place([config("s", **rest)])
    catalog.update("s", offers(["list_a", "list_b", "delete"]))
    assert [t.upstream_name for t in catalog.tools()] == kept
    assert [n for n in ["list_a", "list_b", "delete"] if offered(config("s", **rest), n)] == kept


def test_closest_finds_what_differs_only_in_separators_first() -> None:
    there = ["github__create_issue", "github__create_issue_comment", "gitlab__create_issue"]
    assert closest("github.create_issue", there)[0] == "github__create_issue"
    assert closest("mcp__github__create_issue", there)[0] == "github__create_issue"
    assert closest("githb__create_issu", there)[0] == "github__create_issue"
    assert closest("entirely else", there) == []

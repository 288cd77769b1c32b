"""Where names and URIs lead, and what is said of those that lead nowhere."""

from __future__ import annotations

import pytest

from sidecar.catalog import Catalog, View
from sidecar.model import Entries, Unroutable
from tests.gateway.scripted import ALL, config, offers, prompt, resource, template


def catalog_of(**there: Entries) -> Catalog:
    catalog = Catalog()
    catalog.place([config(name) for name in there])
    for name, entries in there.items():
        catalog.update(name, entries)
    return catalog


TWO = {"a": offers(["b_x", "echo", "ns.dotted"]), "a_b": offers(["x", "echo", "only"])}


@pytest.mark.parametrize(
    ("name", "view", "reason", "says"),
    [
        ("echo", View(), "ambiguous_name", "a__echo, a_b__echo"),
        ("echo", View(("a",)), "no_separator", "did you mean a__echo?"),
        ("only", View(), "no_separator", "did you mean a_b__only?"),
        ("a_echo", View(), "unknown_tool", "SERVER__TOOL here; did you mean a__echo?"),
        ("zzz", View(), "unknown_tool", "list what there is first"),
        ("a__ecko", View(), "unknown_tool", "server a has no tool 'ecko'; did you mean a__echo?"),
        ("a__ns.dotted", View(), "unknown_tool", "did you mean a__ns_dotted_5d2452dc?"),
        ("c__zzz", View(), "unknown_server", "no server 'c' here: there are a, a_b"),
        ("a_b__x", View(("a",)), "unknown_server", "no server 'a_b' here"),
        ("__x", View(), "unknown_server", "no server ''"),
        ("a__", View(), "unknown_tool", "no tool ''"),
        ("a__echo", View(server="a"), "unknown_tool", "did you mean echo?"),
        ("echo", View(server="c"), "unknown_server", "no server 'c'"),
        ("echo", View((), server="a"), "unknown_server", "no server 'a' here"),
    ],
)
def test_a_miss_says_why_and_what_to_do(name: str, view: View, reason: str, says: str) -> None:
    with pytest.raises(Unroutable) as failure:
        catalog_of(**TWO).route_tool(name, view)
    assert failure.value.reason == reason
    assert says in failure.value.message


def test_a_miss_never_tells_of_servers_that_are_not_visible() -> None:
    for name in ("echo", "secret__echo", "a__zzz", "zzz", "b__echo"):
        with pytest.raises(Unroutable) as failure:
            catalog_of(a=offers(["x"]), secret=offers(["echo"])).route_tool(name, View(("a",)))
        assert "secret" not in failure.value.message.replace(repr(name), "").replace("'secret'", "")


def test_a_long_name_is_cut_in_the_message() -> None:
    with pytest.raises(Unroutable) as failure:
        catalog_of(**TWO).route_tool("x" * 100_000, View())
    assert len(failure.value.message) < 300


@pytest.mark.parametrize(
    ("name", "separator", "right"),
    [
        ("a.echo", ".", ("a", "echo")),
        ("a.ns.dotted", ".", ("a", "ns.dotted")),
        # Two readings: the longest server whose rest is one of its tools.
        ("a_b_x", "_", ("a_b", "x")),
        ("a_b_echo", "_", ("a_b", "echo")),
        ("a_ns.dotted", "_", ("a", "ns.dotted")),
        ("a__echo", "__", ("a", "echo")),
        ("a/ns_dotted", "/", None),
        ("a_ns_dotted_5d2452dc", "_", ("a", "ns.dotted")),
    ],
)
def test_a_callers_own_separator(name: str, separator: str, right: tuple[str, str] | None) -> None:
    catalog = catalog_of(**TWO)
    if right is None:
        with pytest.raises(Unroutable):
            catalog.route_tool(name, View(), separator)
    else:
        entry = catalog.route_tool(name, View(), separator)
        assert (entry.server, entry.key) == right


def test_with_the_longer_server_out_of_sight_the_shorter_ones_reading_counts() -> None:
    entry = catalog_of(**TWO).route_tool("a_b_x", View(("a",)), "_")
    assert (entry.server, entry.key) == ("a", "b_x")


@pytest.mark.parametrize("separator", ["_", "-", ".", "/", "__", "___", "a", "x"])
def test_every_tool_has_a_name_under_any_separator_that_leads_back_to_it(separator: str) -> None:
    catalog = catalog_of(**TWO, **{"x": offers(["a" * 70, "ä", "_"])})
    entries = [entry for shelf in catalog.shelves() for entry in shelf.rows["tools"]]
    names = [catalog.separated(entry, View(), separator) for entry in entries]
    assert len(set(names)) == len(names)
    for name, entry in zip(names, entries, strict=True):
        assert catalog.route_tool(name, View(), separator) is entry


def test_errors_under_an_own_separator_name_tools_under_it() -> None:
    with pytest.raises(Unroutable) as failure:
        catalog_of(**TWO).route_tool("a_b.ecko", View(), ".")
    assert failure.value.reason == "unknown_tool"
    assert "a_b.echo" in failure.value.message


def test_prompts_are_named_and_found_like_tools() -> None:
    catalog = catalog_of(
        a=Entries(prompts=(prompt("p"), prompt("q.r"))), b=Entries(prompts=(prompt("p"),))
    )
    entry = catalog.route_prompt("b__p", View())
    assert (entry.server, entry.key) == ("b", "p")
    assert catalog.route_prompt("q.r", View(server="a")).name.startswith("a__q_r_")
    with pytest.raises(Unroutable) as failure:
        catalog.route_prompt("b__pp", View())
    assert failure.value.reason == "unknown_prompt"
    assert "did you mean b__p?" in failure.value.message
    with pytest.raises(Unroutable):
        catalog.route_prompt("a__p", View(("b",)))


def able(**rest: object) -> Entries:
    return Entries(capabilities=ALL, **rest)  # type: ignore[arg-type]


RESOURCES = {
    "a": able(resources=(resource("f:///x"),), templates=(template("f:///{+path}"),)),
    "b": able(
        resources=(resource("f:///x"), resource("f:///b")), templates=(template("g:///{id}"),)
    ),
    "none": Entries(capabilities={"tools": {}}),
}


@pytest.mark.parametrize(
    ("uri", "view", "server"),
    [
        ("f:///x", View(), "a"),
        ("f:///x", View(("b",)), "b"),
        ("f:///x", View(server="b"), "b"),
        # Listed goes before a template, even an earlier server's.
        ("f:///b", View(), "b"),
        ("f:///other/thing", View(), "a"),
        ("g:///1", View(), "b"),
        # Nobody lists it: the only one that could have it.
        ("h:///1", View(("b", "none")), "b"),
        ("h:///1", View(server="a"), "a"),
    ],
)
def test_whose_a_resource_is(uri: str, view: View, server: str) -> None:
    assert catalog_of(**RESOURCES).route_resource(uri, view) == server


@pytest.mark.parametrize(
    ("uri", "view", "says"),
    [
        ("h:///1", View(), "any of a, b could have it: ask that server alone, at /mcp/SERVER"),
        ("h:///1", View(("none",)), "no server here has the resource 'h:///1'"),
        ("f:///x", View(()), "no server here has"),
    ],
)
def test_a_resource_that_leads_nowhere(uri: str, view: View, says: str) -> None:
    with pytest.raises(Unroutable) as failure:
        catalog_of(**RESOURCES).route_resource(uri, view)
    assert failure.value.reason == "unknown_resource"
    assert says in failure.value.message


def test_a_uri_of_two_servers_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    catalog = catalog_of(**RESOURCES)
    catalog.update("b", able(resources=(resource("f:///x"),)))
    texts = [r.getMessage() for r in caplog.records]
    assert len(texts) == 1
    assert "'f:///x'" in texts[0]
    assert "/mcp/b" in texts[0]


def test_whose_a_template_is() -> None:
    catalog = catalog_of(**RESOURCES)
    assert catalog.route_template("g:///{id}", View()) == "b"
    assert catalog.route_template("f:///b", View()) == "b"
    assert catalog.route_template("unlisted/{x}", View(("a",))) == "a"
    with pytest.raises(Unroutable):
        catalog.route_template("unlisted/{x}", View())

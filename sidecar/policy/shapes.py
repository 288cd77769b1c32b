"""Decisions as JSON, as the command line, the admin API and records show them."""

from __future__ import annotations

from dataclasses import asdict

from sidecar.model import Decision, JsonObject, PolicyError, Redaction


def decision(of: Decision, *, message: bool = True) -> JsonObject:
    """``{decision, rule, rules, policy, revision, message, mode, would, error, labels, …}``.

    Without ``message`` a text that may quote the input is left out: so it may be recorded.
    """
    shape: JsonObject = {
        "decision": of.decision,
        "rule": of.rule,
        "rules": list(of.rules),
        "policy": of.policy,
        "revision": of.revision,
        "message": of.message if message or of.message_constant else None,
        "mode": of.mode,
        "would": of.would,
        "error": None if of.error is None else error(of.error),
        "labels": list(of.labels),
    }
    if of.redactions:
        shape["redactions"] = [redaction(each) for each in of.redactions]
    if of.audited:
        shape["audited"] = list(of.audited)
    if of.would_rule:
        shape["would_rule"] = of.would_rule
    return shape


def error(of: PolicyError) -> JsonObject:
    """``{kind, line, column, message, rule, file}``."""
    return asdict(of)


def redaction(of: Redaction) -> JsonObject:
    """``{rule, paths, patterns, replacement}``; a step that is null is every key or index."""
    return {
        "rule": of.rule,
        "paths": [list(path) for path in of.paths],
        "patterns": list(of.patterns),
        "replacement": of.replacement,
    }

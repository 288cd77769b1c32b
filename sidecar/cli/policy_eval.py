"""``sidecar policy eval``, ``replay`` and ``vars``."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from sidecar.cli import common
from sidecar.cli.policy_scope import (
    BAD,
    FOUND,
    USAGE,
    BadInput,
    complain,
    dump,
    read_json,
    scope,
)
from sidecar.model import Decision, JsonObject, Phase
from sidecar.policy import PolicyErrors, describe, shapes
from sidecar.policy.decide import CelPolicy
from sidecar.policy.explain import as_json, as_text, explain
from sidecar.policy.guard import Guarded
from sidecar.policy.phases import EFFECTS
from sidecar.policy.reading import read_input
from sidecar.policy.replay import Replayed, effects
from sidecar.policy.replay import replay as again

# ------------------------------------------------------------------------------------- eval


def evaluate(arguments: argparse.Namespace) -> int:
    """Decide one input; 0 whatever is decided."""
    about = scope(arguments, arguments.policies)
    if about is None:
        return BAD
    try:
        policy = about.load()
        phase, given = read_input(read_json(arguments.input, "the input"))
    except PolicyErrors as errors:
        complain(errors.faults)
        return BAD
    except BadInput as error:
        print(f"sidecar policy eval: {error}", file=sys.stderr)
        return USAGE
    decision = policy.decide(phase, given)
    if arguments.json:
        shape = shapes.decision(decision)
        if arguments.explain:
            shape["explain"] = _explained(policy, phase, given)
        dump(shape)
        return 0
    _show(decision)
    if arguments.explain:
        print()
        if isinstance(policy.policy, CelPolicy):
            print(as_text(explain(policy.policy, phase, given)))
        else:
            print("this engine explains nothing")
    return 0


def _explained(policy: Guarded, phase: Phase, given: JsonObject) -> object:
    if not isinstance(policy.policy, CelPolicy):
        return None
    return as_json(explain(policy.policy, phase, given))


def _show(decision: Decision) -> None:
    print(f"{decision.decision}  by {decision.rule}")
    told = {
        "message": decision.message,
        "matched": ", ".join(decision.rules),
        "audit": ", ".join(decision.audited),
        "labels": ", ".join(decision.labels),
        "redacts": ", ".join(each.rule for each in decision.redactions),
        "revision": decision.revision[:12],
    }
    if decision.mode == "audit":
        told["would be"] = f"{decision.would} by {decision.would_rule}"
    if decision.error is not None:
        error = decision.error
        place = f"{error.file}:{error.line}:{error.column}" if error.line else error.file
        told["error"] = ": ".join(word for word in (place, error.rule, error.message) if word)
    for name, text in told.items():
        if text:
            print(f"{name + ':':10}{common.cell(text)}")


# ----------------------------------------------------------------------------------- replay


def replay(arguments: argparse.Namespace) -> int:
    """Decide records again; 4 when a decision would be another."""
    about = scope(arguments, arguments.policies)
    if about is None:
        return BAD
    counts: Counter[str] = Counter()
    records = 0
    shown: list[JsonObject] = []
    try:
        policy = about.load()
        with arguments.file.open("rb") as lines:
            for each in again(lines, policy):
                records += bool(each.phase)
                counts[each.outcome] += 1
                if arguments.json:
                    shown.append(_shape(each))
                elif each.outcome != "same":
                    print(_line(each))
    except PolicyErrors as errors:
        complain(errors.faults)
        return BAD
    except OSError as error:
        print(f"sidecar policy replay: {arguments.file}: {error.strerror}", file=sys.stderr)
        return USAGE
    if arguments.json:
        dump(shown)
    else:
        print(", ".join(f"{counts[what]} {what}" for what in ("same", "changed", "unknown")))
    if records == 0 and counts["unknown"]:
        print(
            f"sidecar policy replay: {arguments.file} holds no records of decisions",
            file=sys.stderr,
        )
        return USAGE
    return FOUND if counts["changed"] else 0


def _line(each: Replayed) -> str:
    about = " ".join(word for word in (each.phase, each.target) if word)
    what = f"{each.line}: {about}: " if about else f"{each.line}: "
    if each.now is None:
        return common.cell(f"{what}unknown: {each.why}")
    before, now = _effects(each.before), _effects(shapes.decision(each.now))
    if before == now:
        now = f"the same with other things redacted ({now})"
    return common.cell(f"{what}was {before}, would be {now}")


def _effects(decision: JsonObject) -> str:
    """What a decision does, in a few words."""
    _, _, labels, redactions = effects(decision)
    told = [f"{decision.get('decision')} by {decision.get('rule')}"]
    for word, found in (("labels", labels), ("redacts by", redactions)):
        if isinstance(found, list) and found:
            names = (each.get("rule") if isinstance(each, dict) else each for each in found)
            told.append(f"{word} {', '.join(map(str, names))}")
    return "; ".join(told)


def _shape(each: Replayed) -> JsonObject:
    return {
        "line": each.line,
        "outcome": each.outcome,
        "why": each.why or None,
        "phase": each.phase or None,
        "call": each.call or None,
        "target": each.target or None,
        "before": each.before or None,
        "now": None if each.now is None else shapes.decision(each.now),
    }


# ------------------------------------------------------------------------------------- vars


def variables(arguments: argparse.Namespace) -> int:
    """Print what rules can read."""
    phases = [Phase(arguments.phase)] if arguments.phase else list(Phase)
    if arguments.json:
        every = describe.everything()
        dump(every if not arguments.phase else describe.schema(phases[0]))
        return 0
    for phase in phases:
        print(f"{phase}  effects: {', '.join(EFFECTS[phase])}")
        common.table(
            [["  " + name, kind, about] for name, kind, about in describe.rows(phase)],
            ["  NAME", "TYPE", "WHAT"],
        )
        print()
    print("functions: " + ", ".join(describe.functions()))
    return 0

"""A decision in the log, for a person: what all that is decided has in common."""

from __future__ import annotations

import logging

from sidecar.model import Decision


def beside(log: logging.Logger, what: str, decision: Decision) -> None:
    """What audited rules would have made of it, and a rule that failed, in a line each.

    ``what`` was decided, for whom ("call of s__x for ada"). No line has a message of the
    decision's in it: that may quote the input.
    """
    if decision.mode == "audit":
        log.info(
            "%s: in force it would be %s by %s",
            what,
            decision.would or "allow",
            decision.would_rule or decision.rule,
        )
    if decision.error is not None:
        error = decision.error
        log.warning(
            "rule %s failed at %s:%d:%d: %s",
            error.rule or decision.rule,
            error.file or "its policy",
            error.line,
            error.column,
            error.message,
        )

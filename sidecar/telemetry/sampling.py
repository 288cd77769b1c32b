"""Which traces are kept: ``OTEL_TRACES_SAMPLER``.

The samplers of the specification are a comparison here. Any other, by entry point
``opentelemetry_traces_sampler``, is the SDK's way, and costs what it costs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from sidecar.model import TraceContext
from sidecar.ports.tracer import SpanKind, Value
from sidecar.telemetry.environ import SettingError, text

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.sampling import Sampler

log = logging.getLogger("sidecar.telemetry")

Ratio: TypeAlias = Callable[[int], bool]
"""Of a trace id's lower 64 bits: whether the trace is kept."""

GROUP: Final = "opentelemetry_traces_sampler"
_NAMED: Final = ("always_on", "always_off", "traceidratio")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a sampler of the SDK's says of one span."""

    kept: bool
    attributes: Mapping[str, Value]
    tracestate: str


Custom: TypeAlias = Callable[[str, SpanKind, TraceContext, str, Mapping[str, Value]], Verdict]
"""Name, kind, parent, trace id (hex), attributes."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """``parent``: a span that has a parent is kept if that one is; otherwise ``root`` is asked.
    ``custom`` is asked for each span instead, where there is one."""

    parent: bool
    root: Ratio
    custom: Custom | None = None


def always(low: int) -> bool:
    """Every trace."""
    return True


def never(low: int) -> bool:
    """No trace."""
    return False


def ratio(share: float) -> Ratio:
    """A share of them. The same ids as the SDK's ``TraceIdRatioBased`` keeps, so that services
    which are asked alike keep the same traces."""
    bound = round(share * (1 << 64))
    return lambda low: low < bound


def of(environ: Mapping[str, str]) -> Sampling:
    """By ``OTEL_TRACES_SAMPLER`` and ``OTEL_TRACES_SAMPLER_ARG``; ``parentbased_always_on`` where
    nothing is said.

    Raises:
        SettingError: there is no such sampler.
    """
    name = text("OTEL_TRACES_SAMPLER", environ).lower()
    argument = text("OTEL_TRACES_SAMPLER_ARG", environ)
    if not name:
        return Sampling(True, always)
    plain = name.removeprefix("parentbased_")
    if plain in _NAMED:
        found = {"always_on": always, "always_off": never}.get(plain) or ratio(_share(argument))
        return Sampling(plain != name, found)
    return Sampling(False, never, _installed(name, argument))


def _share(argument: str) -> float:
    if not argument:
        return 1.0
    try:
        share = float(argument)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        log.warning("OTEL_TRACES_SAMPLER_ARG is not a number from 0 to 1; 1 is used")
        return 1.0
    return share


def _installed(name: str, argument: str) -> Custom:
    from importlib.metadata import entry_points

    found = next(iter(entry_points(group=GROUP, name=name)), None)
    if found is None:
        known = ", ".join((*_NAMED, *(f"parentbased_{each}" for each in _NAMED)))
        raise SettingError(
            "OTEL_TRACES_SAMPLER", f"{name!r} is neither one of {known} nor installed ({GROUP})"
        )
    try:
        sampler: Sampler = found.load()(argument)
    except Exception as error:
        # It is somebody else's code: whatever it raises, nothing can be sampled with it.
        raise SettingError(
            "OTEL_TRACES_SAMPLER", f"{name!r} cannot be used: {type(error).__name__}"
        ) from error
    return _asking(sampler)


def _asking(sampler: Sampler) -> Custom:
    from opentelemetry.sdk.trace.sampling import Decision
    from opentelemetry.trace import SpanKind as Kind
    from opentelemetry.trace.span import TraceState

    from sidecar.telemetry.sdk import context_of

    kinds = {"internal": Kind.INTERNAL, "server": Kind.SERVER, "client": Kind.CLIENT}

    def ask(
        name: str, kind: SpanKind, parent: TraceContext, trace_id: str, given: Mapping[str, Value]
    ) -> Verdict:
        try:
            result = sampler.should_sample(
                context_of(parent),
                int(trace_id, 16),
                name,
                kinds[kind],
                dict(given),
                trace_state=TraceState.from_header([parent.tracestate]),
            )
            state = result.trace_state
            return Verdict(
                result.decision is Decision.RECORD_AND_SAMPLE,
                dict(result.attributes),
                parent.tracestate if state is None else state.to_header(),
            )
        except Exception:
            # What somebody else's sampler does must not fail a call.
            log.exception("the sampler failed; the span is not kept")
            return Verdict(False, {}, parent.tracestate)

    return ask

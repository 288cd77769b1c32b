"""Names of spans, metrics and their attributes: all that telemetry is called, in one place.

``mcp.*``, ``gen_ai.*``, ``error.type`` … are the semantic conventions for MCP and for generative
AI (open-telemetry/semantic-conventions-genai, docs/gen-ai/mcp.md, status Development).
``sidecar.*`` are our own. docs/telemetry.md documents each of them; a test compares the two.
"""

from __future__ import annotations

from typing import Final


class Names:
    """Spans of ours whose name the conventions do not give."""

    DECIDE: Final = "sidecar.decide"
    APPROVAL: Final = "sidecar.approval"
    ANSWER: Final = "sidecar.answer"
    TOOLS_CHANGED: Final = "sidecar.tools_changed"
    LEG: Final = "sidecar.leg"
    SWEEP: Final = "sidecar.sweep"
    SESSION_UPDATE: Final = "sidecar.session_update"
    EGRESS: Final = "sidecar.egress"
    COMMIT: Final = "sidecar.commit"


class Mcp:
    """Attributes of the conventions for MCP, and of those they refer to."""

    METHOD: Final = "mcp.method.name"
    SESSION: Final = "mcp.session.id"
    REQUEST_ID: Final = "jsonrpc.request.id"
    VERSION: Final = "mcp.protocol.version"
    STATUS_CODE: Final = "rpc.response.status_code"
    ERROR_TYPE: Final = "error.type"
    TRANSPORT: Final = "network.transport"
    PROTOCOL_NAME: Final = "network.protocol.name"
    SERVER_ADDRESS: Final = "server.address"
    SERVER_PORT: Final = "server.port"


class GenAi:
    """Attributes of the conventions for generative AI."""

    OPERATION: Final = "gen_ai.operation.name"
    TOOL: Final = "gen_ai.tool.name"
    PROMPT: Final = "gen_ai.prompt.name"
    ARGUMENTS: Final = "gen_ai.tool.call.arguments"
    RESULT: Final = "gen_ai.tool.call.result"
    TOOL_CALL: Final = "gen_ai.tool.call.id"
    TOOL_TYPE: Final = "gen_ai.tool.type"
    AGENT: Final = "gen_ai.agent.name"
    CONVERSATION: Final = "gen_ai.conversation.id"
    EXECUTE_TOOL: Final = "execute_tool"
    """A value of ``gen_ai.operation.name``."""
    INVOKE_AGENT: Final = "invoke_agent"
    """A value of ``gen_ai.operation.name``."""


class Vcs:
    """Attributes of the conventions for version control."""

    BRANCH: Final = "vcs.ref.head.name"
    COMMIT: Final = "vcs.ref.head.revision"


class Key:
    """Attributes of our own."""

    NAME: Final = "sidecar.name"
    SERVER: Final = "sidecar.server"
    CALL: Final = "sidecar.call"
    KIND: Final = "sidecar.kind"
    TARGET: Final = "sidecar.target"
    PRINCIPAL: Final = "sidecar.principal"
    CLIENT: Final = "sidecar.client"
    ERA: Final = "sidecar.era"
    OUTCOME: Final = "sidecar.outcome"
    ATTEMPT: Final = "sidecar.attempt"
    ATTEMPTS: Final = "sidecar.attempts"

    DECISION: Final = "sidecar.decision"
    PHASE: Final = "sidecar.phase"
    AGAIN: Final = "sidecar.again"
    RULE: Final = "sidecar.rule"
    RULES: Final = "sidecar.rules"
    REVISION: Final = "sidecar.policy.revision"
    WOULD: Final = "sidecar.would"
    WOULD_RULE: Final = "sidecar.would_rule"
    POLICY_ERROR: Final = "sidecar.policy.error"
    LABELS: Final = "sidecar.labels"

    APPROVAL: Final = "sidecar.approval"
    APPROVAL_STATE: Final = "sidecar.approval.state"
    APPROVAL_OUTCOME: Final = "sidecar.approval.outcome"
    APPROVAL_BY: Final = "sidecar.approval.by"
    APPROVAL_WAY: Final = "sidecar.approval.way"
    APPROVAL_WAITED: Final = "sidecar.approval.waited"

    COUNT: Final = "sidecar.tools.count"
    ADDED: Final = "sidecar.tools.added"
    REMOVED: Final = "sidecar.tools.removed"
    CHANGED: Final = "sidecar.tools.changed"

    STATE: Final = "sidecar.leg.state"
    LEG_ERROR: Final = "sidecar.leg.error"
    RETRY_IN: Final = "sidecar.leg.retry_in"

    EGRESS_REASON: Final = "sidecar.egress.reason"
    EGRESS_CLASS: Final = "sidecar.egress.class"

    AGENT_ID: Final = "sidecar.agent.id"
    HARNESS: Final = "sidecar.harness"
    CHECKOUT: Final = "sidecar.checkout"
    WORK: Final = "sidecar.work"
    UPDATE: Final = "sidecar.update"
    SPAN: Final = "sidecar.span"
    STOP: Final = "sidecar.stop_reason"
    CONTINUED: Final = "sidecar.continued"
    PERMISSION_KIND: Final = "sidecar.permission.kind"
    PERMISSION_ANSWER: Final = "sidecar.permission.answer"

    SWEPT: Final = "sidecar.sweep.removed"
    SWEPT_PATHS: Final = "sidecar.sweep.removed_paths"
    KEPT: Final = "sidecar.sweep.kept"
    KEPT_PATHS: Final = "sidecar.sweep.kept_paths"
    KEPT_REASONS: Final = "sidecar.sweep.kept_reasons"


class Metric:
    """Metrics: ``mcp.*`` and ``process.*`` of the conventions, ``sidecar.*`` our own."""

    SERVER_OPERATION: Final = "mcp.server.operation.duration"
    CLIENT_OPERATION: Final = "mcp.client.operation.duration"
    SERVER_SESSION: Final = "mcp.server.session.duration"
    CLIENT_SESSION: Final = "mcp.client.session.duration"

    CALLS: Final = "sidecar.calls"
    APPROVALS: Final = "sidecar.approvals"
    APPROVAL_WAIT: Final = "sidecar.approval.wait"
    EGRESS: Final = "sidecar.egress.decisions"
    SERVERS: Final = "sidecar.servers"
    SERVER_UP: Final = "sidecar.server.up"
    LEG_CHANGES: Final = "sidecar.leg.changes"
    TOOLS: Final = "sidecar.tools"
    SESSIONS: Final = "sidecar.sessions"
    STORE: Final = "sidecar.store.operation.duration"
    QUEUE: Final = "sidecar.queue.depth"
    LOST: Final = "sidecar.queue.lost"
    LAG: Final = "sidecar.event_loop.lag"
    BUILD: Final = "sidecar.build.info"

    CPU: Final = "process.cpu.time"
    MEMORY: Final = "process.memory.usage"
    FILES: Final = "process.unix.file_descriptor.count"
    UPTIME: Final = "process.uptime"


class Label:
    """Attributes that metrics alone have."""

    STORE_OPERATION: Final = "sidecar.store.operation"
    QUEUE: Final = "sidecar.queue"
    VERSION: Final = "service.version"
    PYTHON: Final = "process.runtime.version"

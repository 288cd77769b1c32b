"""Real coding agents on a fake model: what each needs to run offline in a folder of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from sidecar.harness.agent import AgentLimits, AgentSpec
from sidecar.harness.profiles import PROFILES
from sidecar.model import JsonObject
from tests.peers import peers
from tests.peers.fakemodel import FakeModel

ARGS = {"claude": (), "codex": (), "gemini": ("--acp",), "opencode": ("acp",)}
LIMITS = AgentLimits(initialize=120, open=120, silence=120, cancel=30)


def spec(
    name: str,
    home: Path,
    cwd: Path,
    model: FakeModel,
    *,
    limits: AgentLimits = LIMITS,
    mcp_servers: tuple[JsonObject, ...] = (),
) -> AgentSpec:
    """An agent whose HOME is a folder of the test's."""
    home.mkdir(parents=True, exist_ok=True)
    cwd.mkdir(parents=True, exist_ok=True)
    return AgentSpec(
        harness=name,
        profile=PROFILES[name],
        command=tuple(peers.agent(name, *ARGS[name])),
        cwd=cwd,
        env={"HOME": str(home), **_ENV[name](home, model)},
        mcp_servers=mcp_servers,
        limits=limits,
    )


def _claude(home: Path, model: FakeModel) -> Mapping[str, str]:
    return {
        "ANTHROPIC_BASE_URL": model.url,
        "ANTHROPIC_API_KEY": "sk-ant-of-a-test",
        "CLAUDE_CODE_MAX_RETRIES": "0",
        "SHELL": "/bin/bash",
    }


def _codex(home: Path, model: FakeModel) -> Mapping[str, str]:
    config = home / "codex"
    config.mkdir(exist_ok=True)
    (config / "config.toml").write_text(
        'model = "fake-model"\nmodel_provider = "fake"\n'
        "[model_providers.fake]\n"
        f'name = "fake"\nbase_url = "{model.url}/v1"\nenv_key = "OPENAI_API_KEY"\n'
        'wire_api = "responses"\n'
    )
    return {"CODEX_HOME": str(config), "OPENAI_API_KEY": "sk-of-a-test"}


def _gemini(home: Path, model: FakeModel) -> Mapping[str, str]:
    settings = home / ".gemini" / "settings.json"
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(json.dumps({"security": {"auth": {"selectedType": "gemini-api-key"}}}))
    return {"GEMINI_API_KEY": "key-of-a-test", "GOOGLE_GEMINI_BASE_URL": model.url}


def _opencode(home: Path, model: FakeModel) -> Mapping[str, str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{model.url}/v1", "apiKey": "key-of-a-test"},
        "models": {"fake-model": {"name": "Fake", "tool_call": True}},
    }
    content = {
        "provider": {"fake": provider},
        "model": "fake/fake-model",
        "small_model": "fake/fake-model",
        # Overruled by the profile: it asks whatever is configured.
        "permission": {"bash": "allow", "edit": "allow"},
    }
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(content)}


_ENV = {"claude": _claude, "codex": _codex, "gemini": _gemini, "opencode": _opencode}

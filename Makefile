# `make demo` and `make test` are all a newcomer needs; both make their own environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-long test-agents test-otel test-k8s check lint bench differential outage peers clean

demo: $(VENV)/.installed
	@$(BIN)/sidecar demo $(ARGS)

test: $(VENV)/.installed-test peers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest --numprocesses 2 --dist loadfile

# Properties with twenty times the examples, and long walks through worktrees: a long while.
test-long: $(VENV)/.installed-test peers
	SIDECAR_EXAMPLES=20 $(BIN)/pytest -m hypothesis --numprocesses 2 --timeout 3600
	SIDECAR_MACHINE=120 $(BIN)/pytest tests/harness/test_machine.py --timeout 3600

# Real coding agents on a fake model: those of `make test` and three more, a gigabyte from npm.
test-agents: $(VENV)/.installed-test
	@$(BIN)/python tests/peers/install.py --agents
	SIDECAR_AGENTS=1 $(BIN)/pytest tests/harness/agent -m real --timeout 600

# Backends that read what a sidecar tells, in full: tens of megabytes from Debian, and 850 from PyPI.
test-otel: $(VENV)/.installed-test
	@$(BIN)/python tests/peers/prometheus.py
	@$(BIN)/python tests/peers/install.py --otel
	$(BIN)/pytest tests/telemetry/test_prometheus_real.py --timeout 600
	SIDECAR_PHOENIX=1 $(BIN)/pytest tests/telemetry/test_phoenix.py --timeout 900

# The admission policies of k8s/inject by the API server's own code: needs Go, and minutes of CPU.
test-k8s: $(VENV)/.installed-test peers
	SIDECAR_K8S=1 $(BIN)/pytest tests/k8s --timeout 3000

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Real servers and clients that the tests drive, from PyPI and npm, each in its own environment.
peers: $(VENV)/.installed-test
	@$(BIN)/python tests/peers/install.py
	@$(BIN)/python -m tests.peers.postgres
	@$(BIN)/python -m tests.peers.chromium
	@$(BIN)/python -m tests.peers.iptables
	@-$(BIN)/python tests/peers/prometheus.py

bench: $(VENV)/.installed-test peers
	$(BIN)/python -m bench

# Ten thousand random CEL expressions through our engine, cel-cpp and cel-python: minutes.
differential: $(VENV)/.installed-test
	SIDECAR_DIFFERENTIAL=10000 $(BIN)/pytest tests/policy/cel/test_differential.py --timeout 3000

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	@echo "Installing sidecar into $(VENV) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[client]'
	@touch $@

$(VENV)/.installed-test: pyproject.toml | $(VENV)/bin/python
	@echo "Installing sidecar and its test tools into $(VENV) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $@ $(VENV)/.installed

# Two sidecars whose PostgreSQL is lost for a minute, with calls going on: about three minutes.
outage: $(VENV)/.installed-test peers
	SIDECAR_OUTAGE=60 $(BIN)/pytest tests/registry/test_outage.py -s

clean:
	rm -rf $(VENV) .peers .mypy_cache .ruff_cache .pytest_cache .hypothesis

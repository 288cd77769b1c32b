# Images from one file:
#   docker build --target slim -t mcp-sidecar:0.1.0 .        HTTP servers behind it
#   docker build --target fence -t mcp-sidecar:0.1.0-fence .   for k8s/overlays/enforce
#   docker build --target full -t mcp-sidecar:0.1.0-full .   and stdio servers (npx, uvx), coding agents
# Python packages are pinned with their hashes in k8s/image/; docs/kubernetes.md says how to build.

ARG PYTHON=3.11.13-slim-bookworm
ARG NODE=22.20.0-bookworm-slim

FROM python:${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY k8s/image/requirements.txt k8s/image/build.txt k8s/image/
RUN python -m venv --without-pip /opt/sidecar \
 && pip --python /opt/sidecar/bin/python install --require-hashes --only-binary :all: -r k8s/image/requirements.txt \
 && pip install --require-hashes -r k8s/image/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY sidecar sidecar
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /tmp/wheel . \
 && pip --python /opt/sidecar/bin/python install --no-deps /tmp/wheel/*.whl
COPY k8s/image/sbom.py /src/sbom.py
RUN /opt/sidecar/bin/python /src/sbom.py --debian /var/lib/dpkg/status > /opt/sidecar/sbom.cdx.json

FROM build AS tools
COPY k8s/image/tools.txt k8s/image/
RUN python -m venv --without-pip /opt/tools \
 && pip --python /opt/tools/bin/python install --require-hashes --only-binary :all: -r k8s/image/tools.txt

FROM python:${PYTHON} AS slim
LABEL org.opencontainers.image.title="mcp-sidecar" \
      org.opencontainers.image.description="The policy proxy that runs beside an AI agent" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 sidecar \
 && useradd --uid 10001 --gid 10001 --home-dir /var/lib/sidecar --shell /usr/sbin/nologin sidecar \
 && install -d -o 10001 -g 10001 -m 0700 /run/sidecar /var/lib/sidecar \
 && install -d /etc/sidecar \
 && python -m pip uninstall --yes pip \
 && rm -rf /usr/local/lib/python3.11/ensurepip "$HOME/.cache"
COPY --from=build /opt/sidecar /opt/sidecar
COPY k8s/image/sidecar.yaml /etc/sidecar/sidecar.yaml
# The root file system may be read-only: what is written is in /run/sidecar, /var/lib/sidecar and /tmp.
# With the folders of sbin: groupadd, dpkg's helpers and iptables-restore, in the stages below.
ENV PATH=/opt/sidecar/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    SIDECAR_CONFIG=/etc/sidecar/sidecar.yaml
WORKDIR /var/lib/sidecar
USER 10001:10001
EXPOSE 8808 8810
STOPSIGNAL SIGTERM
# The first process of `sidecar run` is its supervisor: it forwards signals, reaps, and ends what is left.
ENTRYPOINT ["/opt/sidecar/bin/sidecar"]
CMD ["run"]

FROM node:${NODE} AS node

FROM slim AS full
USER 0:0
# setpriv, for children.user, is in util-linux, which Debian always has.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends git ca-certificates \
 && rm -rf /var/lib/apt/lists/* \
 && groupadd --gid 10002 agents \
 && useradd --uid 10002 --gid 10002 --home-dir /home/agents --shell /usr/sbin/nologin agents \
 && install -d -o 10002 -g 10002 -m 0700 /home/agents
COPY --from=node /usr/local/bin/node /usr/local/bin/node
COPY --from=node /usr/local/lib/node_modules/npm /usr/local/lib/node_modules/npm
COPY --from=tools /opt/tools /opt/tools
COPY k8s/image/sbom.py /tmp/image/
RUN ln -s ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm \
 && ln -s ../lib/node_modules/npm/bin/npx-cli.js /usr/local/bin/npx \
 && ln -s /opt/tools/bin/uv /opt/tools/bin/uvx /usr/local/bin/ \
 && /opt/sidecar/bin/python /tmp/image/sbom.py --debian /var/lib/dpkg/status --python /opt/tools --node /usr/local/lib/node_modules --program "node=$(node --version)" > /opt/sidecar/sbom.cdx.json \
 && rm -r /tmp/image
LABEL org.opencontainers.image.title="mcp-sidecar-full"
USER 10001:10001

# For k8s/overlays/enforce: an init container that writes packet filter rules.
FROM slim AS fence
USER 0:0
COPY k8s/image/sbom.py /tmp/image/
RUN apt-get update \
 && apt-get install --yes --no-install-recommends iptables \
 && rm -rf /var/lib/apt/lists/* \
 && /opt/sidecar/bin/python /tmp/image/sbom.py --debian /var/lib/dpkg/status > /opt/sidecar/sbom.cdx.json \
 && rm -r /tmp/image
LABEL org.opencontainers.image.title="mcp-sidecar-fence"
ENTRYPOINT []
CMD ["sh", "/fence/fence.sh"]

# `docker build .` makes the small one.
FROM slim

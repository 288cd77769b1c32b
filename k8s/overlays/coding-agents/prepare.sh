#!/bin/sh
# Gives each volume to whom it is for, and clones the repository once. May be run again.
# ROOT is in front of all paths; only tests set it.
set -eu
ROOT=${ROOT:-}
SIDECAR=10001 AGENTS=10002

give() { # WHO MODE FOLDER
    chown "$1:$1" "$ROOT$3"
    chmod "$2" "$ROOT$3"
}

give $SIDECAR 0700 /run/sidecar
give $SIDECAR 0700 /var/lib/sidecar
give $SIDECAR 0711 /worktrees
give $AGENTS 0700 /home/agents
give 0 0755 /checkouts
give 0 1777 /tmp

if [ ! -e "$ROOT/checkouts/billing/.git" ]; then
    # What an interrupted clone left behind is no repository.
    rm -rf "$ROOT/checkouts/billing"
    mkdir "$ROOT/checkouts/billing"
    give $AGENTS 0755 /checkouts/billing
    HOME=$ROOT/home/agents exec setpriv --reuid $AGENTS --regid $AGENTS --clear-groups --no-new-privs \
        git clone "$REPOSITORY" "$ROOT/checkouts/billing"
fi

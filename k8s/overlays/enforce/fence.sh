#!/bin/sh
# Fences the pod's network namespace by the user that owns a socket: the sidecar's goes anywhere,
# everybody else's reaches the sidecar's agent listener, and nothing else at all. What comes in from
# outside is answered (probes of the kubelet). May be run again. Fails where a rule cannot be set,
# and then the pod does not start.
set -eu
PATH=$PATH:/usr/sbin:/sbin
SIDECAR=${SIDECAR_UID:-10001}
PORT=${SIDECAR_PORT:-8808}

fence() {
    tables=$1 family=$2
    # All rules at once or none, so that no moment is without them.
    {
        echo '*filter'
        echo ':INPUT ACCEPT [0:0]'
        echo ':FORWARD ACCEPT [0:0]'
        echo ':OUTPUT ACCEPT [0:0]'
        echo '-A OUTPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT'
        echo "-A OUTPUT -m owner --uid-owner $SIDECAR -j ACCEPT"
        if [ "$family" = 4 ]; then
            echo "-A OUTPUT -o lo -d 127.0.0.1/32 -p tcp --dport $PORT -j ACCEPT"
        else
            # Neighbours are found by the kernel, in nobody's name.
            for kind in 133 134 135 136; do
                echo "-A OUTPUT -p icmpv6 --icmpv6-type $kind -j ACCEPT"
            done
        fi
        echo '-A OUTPUT -j REJECT'
        echo COMMIT
    } | "$tables-restore" --wait
}

fence iptables 4
# Without IPv6 in the kernel there is nothing to fence.
if [ -e /proc/net/if_inet6 ]; then
    fence ip6tables 6
fi

"""What operators and the kubelet talk to; nothing here is reachable from the agent's listener."""

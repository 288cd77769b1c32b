"""Where connections may go: the verdict on an address, the check of a dial, pinned dialling.

The verdict is pure. A check resolves, asks the verdict and the policy, and gives the addresses
that may be dialled; everything that dials for a stranger dials those and nothing else.
"""

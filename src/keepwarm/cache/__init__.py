"""Which blocks hold which prefix: match, reserve, publish, evict. Bookkeeping only.

It never moves a byte and does not know what a turn is; `sched` says when, `engine` does.
"""

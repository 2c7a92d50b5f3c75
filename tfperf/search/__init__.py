"""Which plan runs a net best on this machine: the space of plans, trials in processes of their own, the search."""

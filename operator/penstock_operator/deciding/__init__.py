"""From what is wanted, what is remembered and what is seen to the next step. No I/O: see `decide`."""

"""Speed, latency and memory, each figure a ratio against a reference in the same run. `make bench` runs them."""

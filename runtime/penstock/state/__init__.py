"""State of operators, and how it is placed.

spark_hash, key_groups  which group a key is in, bit for bit as Spark computes it
values                  keyed state of a process function, on layers (frozen in no time) and keys (rows as dict keys)
ttl                     how long state lives
timers                  event-time timers
bins                    rows and partial results of windows, per pane
"""

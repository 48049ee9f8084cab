"""The work of a job: what happens to the rows of a subtask.

- `base`: what an operator is; `factory`: from its description to one that runs
- `sources`, `source_times`, `sinks`: the ends of a job
- `expressions`, `functions`: without state
- `windows`, `combine`, `panes`, `aggregates`: aggregates over time
- `process`, `loops`, `rows`, `user_functions`, `user_errors`: user functions with state and timers
- `valve`, `event_times`: event time

Import the modules: users' functions need `user_functions` alone, and a client never loads what only slots run.
"""

"""The state of jobs, as their checkpoints hold it, for whoever asks: a key, a range of key groups, a whole table.

Nothing of the job itself is asked: the answer is as old as the checkpoint, and says how old that is. It works with the
job down, and costs a running one nothing.
"""

from penstock.queries.reading import CheckpointState, StateTooLargeError, state_of
from penstock.queries.texts import answer, key_of

__all__ = ["CheckpointState", "StateTooLargeError", "answer", "key_of", "state_of"]

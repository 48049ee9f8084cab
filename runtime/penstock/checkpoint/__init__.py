"""Barrier checkpoints: alignment in a subtask, when one is taken and complete, where its state lies, the journal.

alignment      which inputs of a subtask have delivered a barrier
state_objects  the state of one subtask as one object, and back
selection      which objects a subtask has to read
coordinator    when to take a checkpoint, when it is complete, which ones are kept
journal        what happened to a job, as objects that are created once
"""

"""What nobody needs any more is found and removed, whether the jobs run or not.

rules      what may go, and after how long
finds      something that may go, and how it is removed
jobs       of a job's folder: objects that no entry of its journal names
folders    of a place for savepoints: those that were never completed, or are too many
staged     in buckets: uploads that nobody will complete
sweeping   all of these, one after the other

Mark and sweep: whatever a journal or the manifest of a savepoint names stays. What nothing names stays, too, while
somebody may be about to name it: objects of attempts that are in force, whatever is younger than the grace period, and
whatever this version does not know.
"""

from penstock.garbage.finds import Find, Garbage
from penstock.garbage.rules import Rules
from penstock.garbage.sweeping import find_all

__all__ = ["Find", "Garbage", "Rules", "find_all"]

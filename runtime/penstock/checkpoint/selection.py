"""Which state objects of a checkpoint a subtask has to read, and whether a job can start from it at all.

State is found by operator uid, not by vertex: with another parallelism operators may be chained differently.
"""

from collections.abc import Collection

from penstock.checkpoint.state_objects import holds_groups
from penstock.model.errors import UserError
from penstock.model.handles import Manifest, Redistribution, SectionHandle, StateHandle
from penstock.model.ids import Uid
from penstock.state.key_groups import group_range


def handles_for(
    manifest: Manifest, *, index: int, parallelism: int, max_parallelism: int, uids: Collection[Uid]
) -> tuple[StateHandle, ...]:
    """Objects that hold something for subtask `index`, in an order that is the same for all subtasks.

    All objects with a list section are among them, for every subtask: how a list is split depends on the rows
    of all its sections.
    """
    groups = group_range(index, parallelism, max_parallelism)
    chosen = [
        handle
        for handle in manifest.handles
        if any(section.uid in uids and _concerns(section, groups) for section in handle.sections)
    ]
    return tuple(sorted(chosen, key=lambda handle: (handle.subtask, handle.path)))


def check_restorable(manifest: Manifest, *, max_parallelism: int, uids: Collection[Uid]) -> None:
    """Refuse, before anything is started, a checkpoint that does not fit the job."""
    if manifest.max_parallelism != max_parallelism:
        raise UserError(
            "S009",
            f"checkpoint {manifest.checkpoint} has {manifest.max_parallelism} key groups, the job {max_parallelism}",
            fix=f"set max_parallelism to {manifest.max_parallelism}; keyed state cannot be cut anew",
        )
    sizes: dict[Uid, int] = {}
    for handle in manifest.handles:
        for section in handle.sections:
            if section.rows:
                sizes[section.uid] = sizes.get(section.uid, 0) + section.length
    homeless = {uid: size for uid, size in sorted(sizes.items()) if uid not in uids}
    if homeless:
        raise UserError(
            "S004",
            f"checkpoint {manifest.checkpoint} has state that no operator of the job takes: "
            + ", ".join(f'"{uid}" ({size} bytes)' for uid, size in homeless.items()),
            fix=f"give the operators these uids again; the job has {', '.join(sorted(uids))}",
        )


def _concerns(section: SectionHandle, groups: range) -> bool:
    return section.redistribution is not Redistribution.KEYED or holds_groups(section, groups)

"""A subtask's part of a savepoint: its state as tables, written in the background of a barrier.

`states/UID.STATE/SUBTASK-PART.parquet` below the folder of the savepoint. The tables of one state have different key
groups, so that all of its files together are the state, in one line of any program that reads Parquet.
"""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import count

from penstock.checkpoint import canonical
from penstock.checkpoint.state_objects import safe_name
from penstock.checkpoint.whole_tables import whole_tables
from penstock.model import specs
from penstock.model.handles import Column, Redistribution, SectionHandle
from penstock.model.ids import Attempt, CheckpointId, SubtaskId, Uid
from penstock.operators.base import AnySection, Section
from penstock.state.key_groups import KEY_GROUP
from penstock.storage import ObjectStore

STATES = "states"


def write_tables(
    own: ObjectStore,
    target: ObjectStore,
    *,
    checkpoint: CheckpointId,
    attempt: Attempt,
    subtask: SubtaskId,
    operators: Mapping[Uid, specs.OperatorSpec],
    sections: Sequence[tuple[Uid, AnySection]],
    max_parallelism: int,
) -> tuple[SectionHandle, ...]:
    """Everything that a subtask has, as tables in `target`; durable when it returns. `own`: its checkpoints' store."""
    written, numbers = [], count()
    by_operator: dict[Uid, list[AnySection]] = {}
    for uid, section in sections:
        by_operator.setdefault(uid, []).append(section)
    for uid, held in by_operator.items():
        for table in whole_tables(own, operators[uid], held, max_parallelism):
            part = f"{safe_name(subtask.vertex)}-{subtask.index}-{checkpoint}-{attempt}-{next(numbers)}"
            written.append(write_table(target, uid, operators[uid], table, part))
    return tuple(written)


def write_table(target: ObjectStore, uid: Uid, spec: specs.OperatorSpec, section: Section, part: str) -> SectionHandle:
    """One table as one object."""
    frame, columns, form = canonical.to_table(spec, section)
    data = canonical.encode(frame)
    path = f"{state_folder(uid, section.state)}/{part}.parquet"
    target.put(path, data)
    groups = range(0)
    if section.redistribution is Redistribution.KEYED:
        held = frame.get_column(KEY_GROUP)
        groups = range(int(held[0]), int(held[-1]) + 1)
    return table_handle(uid, section.state, section.redistribution, path, data, frame.height, groups, columns, form)


def table_handle(
    uid: Uid,
    state: str,
    redistribution: Redistribution,
    path: str,
    data: bytes,
    rows: int,
    groups: range,
    columns: Sequence[Column],
    form: str,
) -> SectionHandle:
    """What finds a table again."""
    return SectionHandle(
        uid=uid,
        state=state,
        redistribution=redistribution,
        offset=0,
        length=len(data),
        rows=rows,
        first_group=groups.start,
        group_offsets=tuple(range(len(groups) + 1)) if groups else (),
        path=path,
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        columns=tuple(columns),
        form=form,
    )


def state_folder(uid: Uid, state: str) -> str:
    """Where the tables of a state are."""
    return f"{STATES}/{safe_name(uid)}.{safe_name(state.replace(':', '-').replace(' ', '-'))}"

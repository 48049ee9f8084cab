"""`kubectl flow plan`: the class of a change, what moves, and why nothing would begin."""

import copy
from typing import Any

import pytest

from kubectl_flow.planning import _details, groups_that_move, plan_of
from penstock_operator.border import revision_of

SPEC: dict[str, Any] = {
    "image": "shop:1",
    "entrypoint": "orders:main",
    "parallelism": 2,
    "checkpoints": {"storage": "s3://b/orders"},
}


def job(**changes: Any) -> dict[str, Any]:
    spec = {key: value for key, value in {**copy.deepcopy(SPEC), **changes}.items() if value is not None}
    meta = {"name": "orders", "namespace": "shop", "uid": "abcde-1", "generation": 3}
    meta["creationTimestamp"] = "2026-01-01T00:00:00Z"
    return {"apiVersion": "penstock.dev/v1alpha1", "kind": "FlowJob", "metadata": meta, "spec": spec}


def running(**changes: Any) -> dict[str, Any]:
    made = job(**changes)
    made["status"] = {
        "job": {
            "id": "orders-abcde-1",
            "revision": revision_of(made["spec"], {}),
            "generation": 3,
            "parallelism": made["spec"]["parallelism"],
        },
        "engine": {"state": "running"},
        "lastCheckpoint": {"id": 7, "time": "2026-01-01T00:01:00Z", "bytes": 1_280_000},
    }
    return made


@pytest.mark.parametrize(
    ("changes", "change_class", "kind"),
    [
        ({}, "none", ""),
        ({"parallelism": 4}, "rescale", "Rescale"),
        ({"image": "shop:2"}, "rollout", "Rollout"),
        ({"settings": {"state.backend": "rocksdb"}}, "rollout", "Rollout"),
        ({"image": "shop:2", "parallelism": 4}, "rollout", "Rollout"),
        ({"state": "suspended"}, "restart", "Suspend"),
        ({"restore": {"from": {"savepointRef": "before"}}}, "restart", "Restore"),
        ({"upgrade": {"mode": "stateless"}}, "none", ""),
        ({"savepoints": {"schedule": "0 * * * *"}}, "none", ""),
    ],
)
def test_every_edit_has_a_class(changes: dict[str, Any], change_class: str, kind: str) -> None:
    made = plan_of(running(), job(**changes))
    assert (made.change_class, made.kind, made.problem) == (change_class, kind, "")
    assert made.fields == tuple(sorted(f"spec.{name}" for name in changes))


def test_a_job_that_is_not_there_is_created() -> None:
    made = plan_of(None, job())
    assert (made.change_class, made.kind) == ("create", "Create")


def test_a_job_that_is_suspended_goes_on() -> None:
    live = running()
    live["spec"]["state"] = "suspended"
    live["status"]["suspended"] = True
    assert plan_of(live, job()).kind == "Resume"


def test_what_the_controller_would_refuse_is_told_with_its_code() -> None:
    wanted = job(taskManager={"podTemplate": {"spec": {"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}}})
    made = plan_of(running(), wanted)
    assert made.change_class == "none"
    assert "M010 spec.taskManager.podTemplate.spec.volumes[0].hostPath is not allowed" in made.problem
    assert _details(running(), wanted, made) == [f"refused: {made.problem}"]


def test_a_revision_that_was_rejected_is_not_tried_again() -> None:
    live, wanted = running(), job(image="broken:1")
    live["status"]["rejected"] = {
        "generation": 4,
        "revision": revision_of(wanted["spec"], {}),
        "parallelism": 2,
        "reason": "RestoreRefused",
        "message": "S004 no",
    }
    assert plan_of(live, wanted).problem == "S004 no"


def test_a_rescale_says_what_moves() -> None:
    wanted = job(parallelism=4)
    lines = _details(running(), wanted, plan_of(running(), wanted))
    assert lines == [
        "changed: spec.parallelism",
        "parallelism 2 -> 4, TaskManager pods 2 -> 4",
        "96 of 128 key groups move, about 960 KB of state",
        "rows wait while groups move",
    ]


def test_a_rollout_says_what_becomes_of_the_state() -> None:
    for mode, words in (
        ("savepoint", "by a savepoint"),
        ("last-state", "by a last checkpoint"),
        ("stateless", "lost"),
    ):
        wanted = job(image="shop:2", upgrade={"mode": mode})
        [line] = [each for each in _details(running(), wanted, plan_of(running(), wanted)) if "state:" in each]
        assert words in line


@pytest.mark.parametrize("groups", [7, 128])
@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (3, 5), (2, 2)])
def test_groups_that_move_are_those_with_another_subtask(before: int, after: int, groups: int) -> None:
    def owner(group: int, size: int) -> int:
        return next(i for i in range(size) if -(-i * groups // size) <= group < -(-(i + 1) * groups // size))

    expected = sum(owner(group, before) != owner(group, after) for group in range(groups))
    assert groups_that_move(before, after, groups) == expected

"""`kubectl flow report`: no secret leaves the cluster by it."""

import io
import zipfile

from kubectl_flow.reporting import HIDDEN, packed, redacted, without_secrets

CANARY = "c4n4ry-v4lue"


def test_values_that_are_called_like_secrets_are_hidden() -> None:
    shown = redacted(
        {
            "env": [
                {"name": "AWS_SECRET_ACCESS_KEY", "value": CANARY},
                {"name": "DB_PASSWORD", "value": CANARY},
                {"name": "REGION", "value": "eu-1"},
                {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "store", "key": "token"}}},
            ],
            "envFrom": [{"secretRef": {"name": "store-credentials"}}],
            "settings": {"sink.password": CANARY, "state.backend": "rocksdb"},
            "managedFields": [{"f:spec": {}}],
        }
    )
    assert CANARY not in str(shown)
    assert shown["env"][2]["value"] == "eu-1"
    assert shown["env"][3]["valueFrom"]["secretKeyRef"] == {"name": "store", "key": "token"}
    assert shown["envFrom"] == [{"secretRef": {"name": "store-credentials"}}]
    assert shown["settings"] == {"sink.password": HIDDEN, "state.backend": "rocksdb"}
    assert "managedFields" not in shown


def test_texts_that_look_like_secrets_are_hidden() -> None:
    for line in (
        f"connect postgres://bob:{CANARY}@db:5432/shop",
        f"AWS_SECRET_ACCESS_KEY={CANARY}",
        f'{{"password": "{CANARY}", "user": "bob"}}',
        f"Authorization: Bearer {CANARY}",
        f"--set=sink.token={CANARY}",
    ):
        assert CANARY not in without_secrets(line), line
    assert without_secrets("3 key groups moved, 17 rows") == "3 key groups moved, 17 rows"


def test_what_is_hidden_in_an_object_is_hidden_wherever_it_stands() -> None:
    applied = {"kubectl.kubernetes.io/last-applied-configuration": f'{{"value": "{CANARY}"}}'}
    job = {"metadata": {"annotations": applied}, "spec": {"env": [{"name": "MY_TOKEN", "value": CANARY}]}}
    made = packed("orders-report", {"logs/pod.log": f"logged in with {CANARY}\n", "flowjob.yaml": job, "a.json": [1]})
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        content = {name: archive.read(name).decode() for name in archive.namelist()}
    assert sorted(content) == ["orders-report/a.json", "orders-report/flowjob.yaml", "orders-report/logs/pod.log"]
    assert all(CANARY not in text for text in content.values())
    assert content["orders-report/logs/pod.log"] == f"logged in with {HIDDEN}\n"

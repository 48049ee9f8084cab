"""An S3 server in the cluster, which can be away for a while and then has what it had."""

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import boto3
from botocore.config import Config

from harness.kubectl import Kubectl, Object, schedulable_nodes
from harness.waiting import wait_until

NAMESPACE = "penstock-e2e-s3"
ACCESS_KEY = "penstock"
SECRET_KEY = "penstock-secret"
PORT = 7070
ENDPOINT = f"http://s3.{NAMESPACE}.svc.cluster.local:{PORT}"
CREDENTIALS = "s3-credentials"
"""A Secret of this name is in every namespace of a test."""


@dataclass
class S3Server:
    """versitygw, in a namespace of its own."""

    kubectl: Kubectl
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def make_bucket(self, name: str) -> str:
        """Its name."""
        with self.client() as client:
            client.create_bucket(Bucket=name)
        return name

    def remove_bucket(self, name: str) -> None:
        """With everything in it; what a test wrote is of no use afterwards."""
        with self.client() as client:
            for page in client.get_paginator("list_objects_v2").paginate(Bucket=name):
                keys = [{"Key": entry["Key"]} for entry in page.get("Contents", [])]
                if keys:
                    client.delete_objects(Bucket=name, Delete={"Objects": keys, "Quiet": True})

    def uri(self, bucket: str, folder: str) -> str:
        """An address for pods."""
        return f"s3://{bucket}/{folder}?endpoint={ENDPOINT}"

    @contextlib.contextmanager
    def client(self) -> Iterator[Any]:
        """For this process."""
        with self.kubectl.forwarded("service/s3", PORT) as port:
            client = boto3.client(
                "s3",
                endpoint_url=f"http://127.0.0.1:{port}",
                region_name="us-east-1",
                aws_access_key_id=ACCESS_KEY,
                aws_secret_access_key=SECRET_KEY,
                config=Config(s3={"addressing_style": "path"}),
            )
            try:
                yield client
            finally:
                client.close()

    def read_all(self, bucket: str, folder: str) -> dict[str, bytes]:
        """Objects in a folder: path below it -> content."""
        found = {}
        with self.client() as client:
            prefix = folder.rstrip("/") + "/"
            for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
                for entry in page.get("Contents", []):
                    body = client.get_object(Bucket=bucket, Key=entry["Key"])["Body"].read()
                    found[entry["Key"].removeprefix(prefix)] = body
        return found

    def keys(self, bucket: str, folder: str) -> list[str]:
        """Objects in a folder: paths below it."""
        with self.client() as client:
            prefix = folder.rstrip("/") + "/"
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
            return [entry["Key"].removeprefix(prefix) for page in pages for entry in page.get("Contents", [])]

    def go_away(self) -> None:
        """From now on nobody answers."""
        self.kubectl("scale", "statefulset/s3", "--replicas=0")
        wait_until("the S3 server is gone", lambda: not self.kubectl.items("pods"), seconds=90)

    def come_back(self) -> None:
        """With everything that it had."""
        self.kubectl("scale", "statefulset/s3", "--replicas=1")
        self.kubectl("rollout", "status", "statefulset/s3", "--timeout=120s", seconds=130)


def deploy_s3(kubectl: Kubectl, image: str) -> S3Server:
    """It runs when this returns.

    Its data is on the first node: what was acknowledged is there after a restart of the pod. Tests that break a node
    take another one.
    """
    ours = kubectl.within(NAMESPACE)
    ours.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    ours.apply(*_objects(image, schedulable_nodes(kubectl)[0]))
    ours("rollout", "status", "statefulset/s3", "--timeout=180s", seconds=190)
    return S3Server(ours)


def credentials() -> Object:
    """What a pod reads its keys from, in its own namespace."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": CREDENTIALS},
        "stringData": {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY},
    }


def _objects(image: str, node: str) -> list[Object]:
    labels = {"app.kubernetes.io/name": "s3"}
    container = {
        "name": "s3",
        "image": image,
        "args": ["--port", f":{PORT}", "posix", "/data"],
        "env": [{"name": "ROOT_ACCESS_KEY", "value": ACCESS_KEY}, {"name": "ROOT_SECRET_KEY", "value": SECRET_KEY}],
        "ports": [{"name": "s3", "containerPort": PORT}],
        "readinessProbe": {"tcpSocket": {"port": "s3"}, "periodSeconds": 1},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "tmp", "mountPath": "/tmp"}],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
    }
    volumes = [
        {"name": "data", "hostPath": {"path": "/var/lib/penstock-e2e-s3", "type": "DirectoryOrCreate"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    template = {
        "metadata": {"labels": labels},
        "spec": {
            "containers": [container],
            "volumes": volumes,
            "terminationGracePeriodSeconds": 5,
            "nodeSelector": {"kubernetes.io/hostname": node},
        },
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "s3"},
            "spec": {"selector": labels, "ports": [{"name": "s3", "port": PORT, "targetPort": "s3"}]},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "s3"},
            "spec": {"serviceName": "s3", "selector": {"matchLabels": labels}, "template": template},
        },
    ]

"""What images/README.md promises of the images."""

import json
import time

from harness import sessions
from harness.images import Images
from harness.kubectl import Kubectl
from harness.s3 import S3Server
from harness.waiting import wait_until

LOOK = """
import json, os, pathlib, shutil
def writable(folder):
    try:
        pathlib.Path(folder, "probe").write_text("")
    except OSError:
        return False
    return True
print(json.dumps({
    "user": os.getuid(),
    "writable": [folder for folder in ("/", "/opt/penstock", "/opt/programs", "/etc", "/tmp", "/var/penstock")
                 if writable(folder)],
    "tools": [tool for tool in ("pip", "pip3", "gcc", "cc", "make", "curl", "wget") if shutil.which(tool)],
    "caches": [path for path in ("/root/.cache", "/etc/pip.conf", "/pip") if os.path.lexists(path)],
}))
"""


def test_a_job_s_pods_have_little_and_end_when_they_are_told(
    kubectl: Kubectl, s3: S3Server, bucket: str, images: Images
) -> None:
    sessions.start_session(kubectl, images.penstock, s3.uri(bucket, "state"), {"empty.py": ""}, task_managers=1)
    found = json.loads(kubectl.execute("session-taskmanager-0", "python3", "-c", LOOK))
    assert found == {"user": 10001, "writable": ["/tmp", "/var/penstock"], "tools": [], "caches": []}

    started = time.monotonic()
    kubectl("delete", "statefulset/session-taskmanager", "statefulset/session-jobmanager", "--wait=false")
    wait_until("the pods are gone", lambda: not kubectl.items("pods"), seconds=40)
    grace = 20  # of these pods; whoever ignores SIGTERM needs all of it
    assert time.monotonic() - started < grace / 2

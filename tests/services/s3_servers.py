"""S3 servers for the tests: installed once by version, started on a free port of this machine.

`python tests/services/s3_servers.py` installs what is missing, in minutes; `make test-services` begins with it.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import boto3
from botocore.config import Config

CACHE = Path(os.environ.get("PENSTOCK_SERVICES") or Path.home() / ".cache" / "penstock-services")
ACCESS_KEY = "penstock"
SECRET_KEY = "penstock-secret"
START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Program:
    """A server that `go install` builds."""

    name: str
    version: str
    package: str

    @property
    def folder(self) -> Path:
        return CACHE / f"{self.name}-{self.version}"

    @property
    def binary(self) -> Path:
        return self.folder / self.name

    def install(self) -> None:
        """Once per version, whoever asks at the same time."""
        CACHE.mkdir(parents=True, exist_ok=True)
        with (CACHE / f"{self.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.binary.exists():
                return
            go = shutil.which("go")
            if go is None:
                sys.exit(
                    f"{self.name} is built with Go, which is not here. On Debian and Ubuntu: apt-get install golang"
                )
            print(f"building {self.name} {self.version} (once, takes minutes)", flush=True)
            started = time.monotonic()
            building = CACHE / f"{self.folder.name}.building"
            environment = {**os.environ, "GOBIN": str(building)}
            if subprocess.run(
                [go, "install", f"{self.package}@{self.version}"], env=environment, check=False
            ).returncode:
                sys.exit(f"{self.name} could not be built; see above")
            building.rename(self.folder)
            print(f"built {self.name} in {time.monotonic() - started:.0f} s", flush=True)


VERSITYGW = Program("versitygw", "v1.8.0", "github.com/versity/versitygw/cmd/versitygw")
MINIO = Program("minio", "v0.0.0-20260212201848-7aac2a2c5b7c", "github.com/minio/minio")
PROGRAMS = (VERSITYGW, MINIO)


@dataclass(slots=True)
class S3Server:
    """One server with its data in a folder; it can be killed and started again on the same port."""

    program: Program
    folder: Path
    port: int = field(default_factory=lambda: free_port())
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def uri(self, bucket: str, folder: str = "", **options: str) -> str:
        asked = "&".join(f"{name}={value}" for name, value in {"endpoint": self.endpoint, **options}.items())
        return f"s3://{bucket}{'/' if folder else ''}{folder}?{asked}"

    def start(self) -> None:
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        listen, store = f"127.0.0.1:{self.port}", str(data)
        words, variables = {
            "versitygw": (
                ["--port", listen, "posix", store],
                {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY},
            ),
            "minio": (
                ["server", "--address", listen, store],
                {
                    "MINIO_ROOT_USER": ACCESS_KEY,
                    "MINIO_ROOT_PASSWORD": SECRET_KEY,
                    "MINIO_BROWSER": "off",
                    "MINIO_UPDATE": "off",
                    "MINIO_CI_CD": "1",
                },
            ),
        }[self.program.name]
        if not self.program.binary.exists():
            raise FileNotFoundError(f"{self.program.binary} is not there: run `make test-services`, which installs it")
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(self.program.binary), *words], env={**os.environ, **variables}, stdout=log, stderr=log
            )
        self._wait_until_it_answers()

    def kill(self) -> None:
        """As if the power were cut."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process = None

    def make_bucket(self, name: str) -> None:
        client = s3_client(self.endpoint)
        try:
            client.create_bucket(Bucket=name)
        finally:
            client.close()

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        health = f"{self.endpoint}/minio/health/ready" if self.program is MINIO else self.endpoint
        while not _answers(health, any_status=self.program is not MINIO):
            assert self.process is not None
            log = self.folder / "log"
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.program.name} does not answer:\n{log.read_text()[-2000:]}")
            time.sleep(0.02)


@contextlib.contextmanager
def running(program: Program, folder: Path) -> Iterator[S3Server]:
    server = S3Server(program, folder)
    server.start()
    try:
        yield server
    finally:
        if server.process is not None:
            server.kill()


def s3_client(endpoint: str):  # type: ignore[no-untyped-def] # boto3 has no types
    """For what the product does not do: making buckets, looking at what is there."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        config=Config(s3={"addressing_style": "path"}),
    )


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def _answers(url: str, *, any_status: bool) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return any_status
    except OSError:
        return False


if __name__ == "__main__":
    for each in PROGRAMS:
        each.install()

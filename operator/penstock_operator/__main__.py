"""`python -m penstock_operator run | crds`."""

import argparse
import asyncio
import os
import sys
from pathlib import Path

from penstock_operator import __version__
from penstock_operator.spec.definitions import write


def main(words: list[str] | None = None) -> int:
    """One command."""
    parser = argparse.ArgumentParser(
        prog="penstock_operator", description="Runs FlowJobs on Kubernetes.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="watch and act until SIGTERM")
    run.add_argument(
        "--namespace",
        action="append",
        metavar="NS",
        help="watch this one; may be repeated. Default: $PENSTOCK_OPERATOR_NAMESPACES (a list with commas), else all",
    )
    run.add_argument(
        "--default-image",
        default=os.environ.get("PENSTOCK_OPERATOR_IMAGE", "penstock/taskmanager:latest"),
        metavar="IMAGE",
        help="for jobs that name none. Default: $PENSTOCK_OPERATOR_IMAGE",
    )
    run.add_argument(
        "--lease",
        default=os.environ.get("PENSTOCK_OPERATOR_LEASE", "penstock-operator"),
        metavar="NAME",
        help="in $POD_NAMESPACE; who holds it leads. Default: $PENSTOCK_OPERATOR_LEASE, else penstock-operator",
    )
    run.add_argument("--port", type=int, default=8080, help="of /metrics, /healthz and /readyz. Default: 8080")
    run.add_argument("--no-leader-election", action="store_true", help="when nobody else runs; for trying things out")
    run.add_argument("--log-level", default=os.environ.get("PENSTOCK_OPERATOR_LOG_LEVEL", "info"))
    crds = commands.add_parser("crds", help="write the CustomResourceDefinitions")
    crds.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    given = parser.parse_args(words)
    if given.command == "crds":
        for folder in given.folders:
            print(*write(folder), sep="\n")
        return 0
    from penstock_operator.running import Options
    from penstock_operator.running import run as run_process

    listed = os.environ.get("PENSTOCK_OPERATOR_NAMESPACES", "")
    namespaces = given.namespace or [name.strip() for name in listed.split(",") if name.strip()]
    options = Options(
        namespaces=tuple(namespaces),
        default_image=given.default_image,
        own_namespace=os.environ.get("POD_NAMESPACE", "default"),
        lease=given.lease,
        port=given.port,
        leader_election=not given.no_leader_election,
        log_level=given.log_level,
    )
    return asyncio.run(run_process(options))


if __name__ == "__main__":
    sys.exit(main())

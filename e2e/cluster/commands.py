"""The commands of `python3 e2e/cluster`."""

import argparse
import os
import shutil
import signal
import socket
import time
from pathlib import Path

from cluster import binaries, control_groups, control_plane, keys, layout, node_init, nodes, packages, processes
from cluster.shell import CommandError, die, run, say, succeeds, wait_for


def main(words: list[str]) -> int:
    """Exit code."""
    if words[:1] == ["_node"]:
        node_init.main(words[1])
    arguments = _parser().parse_args(words)
    _check_machine()
    try:
        arguments.command(arguments)
    except (CommandError, ValueError) as error:
        die(str(error))
    return 0


def up(arguments: argparse.Namespace) -> None:
    """Start what does not run."""
    for folder in (layout.LOGS, layout.RUNNING, layout.NODES):
        folder.mkdir(parents=True, exist_ok=True)
    layout.STATE.chmod(0o700)
    packages.install()
    binaries.build()
    started, since = time.monotonic(), time.strftime("%FT%T", time.gmtime())
    control_groups.make_system()
    if not succeeds("ip", "link", "show", layout.BRIDGE):
        run("ip", "link", "add", layout.BRIDGE, "type", "bridge")
        run("ip", "address", "add", f"{layout.HOST_IP}/24", "dev", layout.BRIDGE)
    run("ip", "link", "set", layout.BRIDGE, "up")
    keys.make_all()
    control_plane.start()
    names = [f"node{number}" for number in range(1, arguments.nodes + 1)]
    for node in names:
        nodes.start(node)
    # People and tests reach Services and pods from the machine itself, through the first node.
    run("ip", "route", "replace", layout.SERVICE_NETWORK, "via", layout.node_ip(1))
    wait_for("the namespace kube-system", _has_service_account, seconds=60)
    manifest = (layout.SOURCE / "manifests" / "dns.yaml").read_text()
    for name in ("COREDNS_IMAGE", "DNS_IP"):
        manifest = manifest.replace(f"@{name}@", getattr(layout, name))
    control_plane.kubectl("apply", "--server-side", "--filename=-", stdin=manifest)
    for node in names:
        nodes.wait_until_ready(node, since)
    wait_for("the cluster's DNS", _dns_answers, seconds=120, hint="kubectl --namespace kube-system get pods")
    say(f"{len(names)} node(s) are ready after {time.monotonic() - started:.0f} s")
    print(f"export KUBECONFIG={layout.KUBECONFIG} PATH={layout.BIN}:$PATH")


def down(arguments: argparse.Namespace) -> None:
    """Stop all of it, and take back every change to the machine."""
    for name in processes.names():
        if name.startswith("node"):
            nodes.power_off(name.partition(".")[0])
    control_plane.stop()
    if succeeds("ip", "link", "show", layout.BRIDGE):
        run("ip", "link", "delete", layout.BRIDGE)  # and with it the routes
    control_groups.remove()
    if arguments.wipe:
        shutil.rmtree(layout.STATE, ignore_errors=True)
    say("down")


def status(_: argparse.Namespace) -> None:
    """What runs, and what the API server says."""
    found = {name: processes.find(name) for name in (*control_plane.ORDER, *nodes.running())}
    for name, pid in found.items():
        print(f"{name}: {'stopped' if pid is None else f'runs, pid {pid}'}")
    if found["kube-apiserver"] is None:
        raise SystemExit(1)
    print(control_plane.kubectl("get", "nodes", "--output=wide"))
    print(control_plane.kubectl("get", "pods", "--all-namespaces", "--output=wide"))


def load(arguments: argparse.Namespace) -> None:
    """Images into nodes."""
    for archive in arguments.archives:
        nodes.load(archive)


def node_up(arguments: argparse.Namespace) -> None:
    """One node."""
    since = time.strftime("%FT%T", time.gmtime())
    nodes.start(arguments.node)
    nodes.wait_until_ready(arguments.node, since)


def node_down(arguments: argparse.Namespace) -> None:
    """One node."""
    nodes.power_off(arguments.node)


def node_exec(arguments: argparse.Namespace) -> None:
    """A command on a node."""
    nodes.enter(arguments.node, arguments.words)


def part_down(arguments: argparse.Namespace) -> None:
    """A part of the control plane."""
    control_plane.stop_part(arguments.part, signal.SIGKILL if arguments.kill else signal.SIGTERM)


def part_up(arguments: argparse.Namespace) -> None:
    """A part of the control plane."""
    control_plane.start_part(arguments.part)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 e2e/cluster", description="A real Kubernetes on one Linux machine.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(command=globals()[name.replace("-", "_")])
        return added

    command("up", "build what is missing, start a control plane and nodes").add_argument(
        "nodes", nargs="?", type=int, default=1, choices=range(1, layout.MOST_NODES + 1), metavar="NODES"
    )
    command("down", "stop everything; binaries stay").add_argument(
        "--wipe", action="store_true", help="forget the cluster's state and its images, too"
    )
    command("status", "what runs")
    command("load", "put the images of archives (docker save) on every node").add_argument(
        "archives", nargs="+", type=Path, metavar="ARCHIVE"
    )
    for name, text in (
        ("node-up", "start a node, or start it again"),
        ("node-down", "power a node off: its pods die at once"),
    ):
        command(name, text).add_argument("node", metavar="NODE")
    entered = command("node-exec", "run a command on a node: ctr, nft, ip ...")
    entered.add_argument("node", metavar="NODE")
    entered.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND")
    for name, text in (("part-up", "start a part of the control plane"), ("part-down", "stop a part of it")):
        added = command(name, text)
        added.add_argument("part", choices=control_plane.ORDER)
        if name == "part-down":
            added.add_argument("--kill", action="store_true", help="by SIGKILL")
    return parser


def _check_machine() -> None:
    if os.geteuid() != 0:
        die("namespaces, bridges and control groups need root; else use kind, or a cluster of yours (KUBECONFIG)")
    if missing := control_groups.missing():
        die(f"this machine has no control groups of version 1 ({', '.join(missing)}); use kind, or KUBECONFIG")
    for path in (layout.CACHE, layout.SOURCE):
        for hidden in layout.HIDDEN_IN_NODES:
            if path.is_relative_to(hidden):
                die(f"{path} is below {hidden}, where nodes have folders of their own; see PENSTOCK_E2E_CACHE")


def _has_service_account() -> bool:
    kubectl = (layout.BIN / "kubectl", f"--kubeconfig={layout.KUBECONFIG}")
    return succeeds(*kubectl, "--namespace=kube-system", "get", "serviceaccount", "default")


def _dns_answers() -> bool:
    try:
        with socket.create_connection((layout.DNS_IP, 53), timeout=2):
            return True
    except OSError:
        return False

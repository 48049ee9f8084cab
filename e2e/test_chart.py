"""The chart: installed, tested, upgraded and uninstalled, with a job that notices nothing of it."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import helm
from harness.flowjobs import FlowJobs
from harness.images import Images
from harness.kubectl import Kubectl
from harness.operators import NAME, POD_LABELS, RELEASE, let_go, values
from harness.s3 import S3Server
from harness.waiting import wait_until

KUBERNETES = "--kube-version=1.34.0"
"""`helm template` asks no cluster."""
NAMESPACED = "all,configmaps,secrets,serviceaccounts,roles,rolebindings,leases,poddisruptionbudgets,networkpolicies"


@pytest.fixture
def uninstalled(definitions: None, admin: Kubectl, kubectl: Kubectl) -> Iterator[None]:
    """The kinds are those of a release that may be taken over, and no release is left behind."""
    yield
    let_go(kubectl)
    helm.attempt(kubectl, "uninstall", RELEASE, "--wait")
    helm.attempt(kubectl, "uninstall", "second", "--wait")


def test_a_job_notices_nothing_of_an_upgrade_and_an_uninstalled_release_leaves_what_was_asked_for(
    uninstalled: None, admin: Kubectl, kubectl: Kubectl, images: Images, s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    before = objects(kubectl)
    cluster_before = cluster_objects(admin)
    older = older_chart(tmp_path)
    said = helm.install(kubectl, RELEASE, values(images), "--take-ownership", chart=older)
    assert "kubectl flow status hot-items" in said, "the notes name the next commands"
    assert "Savepoint" not in columns(admin)
    helm.run(kubectl, "test", RELEASE, "--timeout=60s")
    assert not kubectl.items("pods", labels="app.kubernetes.io/name=penstock-test"), "the pod of the test is gone"
    assert len(kubectl.items("pods", labels=POD_LABELS)) == 2
    assert leader(kubectl)

    jobs = FlowJobs(kubectl, images.penstock)
    jobs.add_program("totals")
    kubectl.apply(jobs.manifest("totals", s3.uri(bucket, "state")))
    jobs.wait_settled("totals", seconds=90)
    pods = jobs.pids("totals")
    generation = jobs.get("totals")["metadata"]["generation"]

    helm.install(kubectl, RELEASE, values(images, logLevel="debug"), "--take-ownership")
    assert "Savepoint" in columns(admin), "the kinds are upgraded with the release"
    wait_until("the new controller leads", lambda: jobs_are_looked_at(kubectl), seconds=60)
    jobs.wait_settled("totals")
    helm.install(kubectl, RELEASE, values(images, logLevel="debug"))
    assert jobs.pids("totals") == pods
    assert jobs.get("totals")["metadata"]["generation"] == generation

    helm.run(kubectl, "uninstall", RELEASE, "--wait", "--timeout=60s")

    def left() -> set[str]:
        return objects(kubectl) - before - own_of_job(kubectl, "totals")

    wait_until("of the controller there is nothing left", lambda: left() == {"configmaps/totals"}, seconds=60)
    assert cluster_objects(admin) == cluster_before
    assert jobs.pids("totals") == pods, "the job runs on without a controller"

    helm.install(kubectl, RELEASE, values(images, replicas="1"))
    kubectl("delete", "fj/totals", "--timeout=120s", seconds=130)
    wait_until("its pods are gone", lambda: not jobs.pids("totals"), seconds=60)


def test_two_releases_share_a_cluster_when_each_has_its_namespaces(
    uninstalled: None, kubectl: Kubectl, images: Images
) -> None:
    own = {"watchNamespaces": f"{{{kubectl.namespace}}}", "crds.install": "false", "replicas": "1"}
    helm.install(kubectl, RELEASE, values(images, **own))
    again = helm.attempt(kubectl, "install", RELEASE, str(helm.CHART))
    assert again.returncode, "a release of this name is there"
    helm.install(kubectl, "second", values(images, **own))
    leases = {lease["metadata"]["name"] for lease in kubectl.items("leases")}
    assert leases == {NAME, "second-penstock-operator"}
    for release in (RELEASE, "second"):
        helm.run(kubectl, "uninstall", release, "--wait", "--timeout=60s")
    assert not kubectl.items("leases")


def test_values_are_checked_and_every_part_can_be_switched_on(kubectl: Kubectl) -> None:
    for wrong, what in (
        ("replica=3", "replica"),
        ("replicas=two", "replicas"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("watchNamespaces={Upper}", "watchNamespaces"),
    ):
        done = helm.attempt(kubectl, "template", "x", str(helm.CHART), KUBERNETES, f"--set={wrong}")
        assert done.returncode
        assert what in done.stderr, done.stderr
    everything = [f"--set={name}.enabled=true" for name in ("podMonitor", "serviceMonitor", "networkPolicy")]
    kinds = [each["kind"] for each in rendered(kubectl, *everything)]
    assert {"PodMonitor", "ServiceMonitor", "NetworkPolicy", "PodDisruptionBudget", "Lease"} <= set(kinds)
    assert {"PodMonitor", "ServiceMonitor", "NetworkPolicy"}.isdisjoint(each["kind"] for each in rendered(kubectl))
    digest = "sha256:" + "0" * 64
    [deployment] = [each for each in rendered(kubectl, f"--set=image.tag={digest}") if each["kind"] == "Deployment"]
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == f"operator@{digest}"
    helm.run(kubectl, "lint", str(helm.CHART), "--strict")


def test_the_controller_may_do_what_the_documentation_says_and_no_more(
    uninstalled: None, admin: Kubectl, kubectl: Kubectl, images: Images
) -> None:
    own = {"watchNamespaces": f"{{{kubectl.namespace}}}", "crds.install": "false", "replicas": "0"}
    helm.install(kubectl, RELEASE, values(images, **own))
    account = f"system:serviceaccount:{kubectl.namespace}:{NAME}"
    assert (
        rights(kubectl, account) - rights(kubectl, f"system:serviceaccount:{kubectl.namespace}:default")
        == documented()
    )
    for forbidden in (("get", "secrets"), ("list", "secrets"), ("create", "pods"), ("get", "configmaps")):
        assert kubectl.attempt("auth", "can-i", *forbidden, f"--as={account}").returncode, forbidden


def rights(kubectl: Kubectl, account: str) -> set[tuple[str, str]]:
    """Resource (with the names it is for) and verb, as `kubectl auth can-i --list` tells them."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": kubectl.namespace},
    }
    text = kubectl(
        "create", f"--as={account}", "--validate=false", "--filename=-", "--output=json", stdin=json.dumps(review)
    )
    found = set()
    for rule in json.loads(text)["status"]["resourceRules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    named = f" {','.join(rule['resourceNames'])}" if rule.get("resourceNames") else ""
                    found.add((f"{resource}.{group}".rstrip(".") + named, verb))
    return found


def documented() -> set[tuple[str, str]]:
    """The table in docs/kubernetes.md."""
    page = (helm.CHART.parents[1] / "docs" / "kubernetes.md").read_text()
    table = page.partition("| resource | verbs |")[2].partition("\n\n")[0]
    found = set()
    for line in table.splitlines()[2:]:
        _, resources, verbs, *_ = (cell.strip() for cell in line.split("|"))
        for resource in resources.replace("`", "").split(", "):
            found |= {(resource.replace("RELEASE-operator", NAME), verb) for verb in verbs.split(", ")}
    return found


def older_chart(folder: Path) -> Path:
    """As a release before this one might have been: a column of a kind is missing."""
    chart = folder / "penstock"
    shutil.copytree(helm.CHART, chart)
    path = chart / "definitions" / "flowjob.yaml"
    definition = yaml.safe_load(path.read_text())
    version = definition["spec"]["versions"][0]
    version["additionalPrinterColumns"] = [
        column for column in version["additionalPrinterColumns"] if column["name"] != "Savepoint"
    ]
    path.write_text(yaml.safe_dump(definition))
    return chart


def columns(admin: Kubectl) -> list[str]:
    definition = admin.get("crd", "flowjobs.penstock.dev")
    return [column["name"] for column in definition["spec"]["versions"][0]["additionalPrinterColumns"]]


def leader(kubectl: Kubectl) -> str:
    return wait_until(
        "one leads", lambda: kubectl.get("lease", NAME).get("spec", {}).get("holderIdentity"), seconds=30
    )


def jobs_are_looked_at(kubectl: Kubectl) -> bool:
    """By a controller whose pod is there."""
    pods = {pod["metadata"]["name"] for pod in kubectl.items("pods", labels=POD_LABELS)}
    return leader(kubectl).rpartition("-")[0] in pods


def rendered(kubectl: Kubectl, *words: str) -> list[Any]:
    text = helm.run(kubectl, "template", RELEASE, str(helm.CHART), KUBERNETES, *words)
    return [each for each in yaml.safe_load_all(text) if each]


def objects(kubectl: Kubectl) -> set[str]:
    """Names of what is in the namespace, but for what Kubernetes itself makes of it."""
    found = kubectl("get", NAMESPACED, "--output=json")
    return {
        f"{each['kind'].lower()}s/{each['metadata']['name']}"
        for each in json.loads(found)["items"]
        if each["kind"] != "EndpointSlice"
    }


def own_of_job(kubectl: Kubectl, job: str) -> set[str]:
    text = kubectl("get", NAMESPACED, f"--selector=penstock.dev/job={job}", "--output=json")
    return {f"{each['kind'].lower()}s/{each['metadata']['name']}" for each in json.loads(text)["items"]}


def cluster_objects(admin: Kubectl) -> set[str]:
    kinds = "clusterroles,clusterrolebindings,customresourcedefinitions"
    found = json.loads(admin("get", kinds, "--output=json"))["items"]
    return {f"{each['kind']}/{each['metadata']['name']}" for each in found}

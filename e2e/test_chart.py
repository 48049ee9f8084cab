"""The chart: what it renders, refuses, installs, upgrades, and leaves behind."""

import json
from collections.abc import Iterator

import pytest

from harness.images import Images
from harness.kubectl import Kubectl, Object
from harness.releases import CHART, HelmError, Release, helm
from harness.waiting import wait_until

CRDS = ("flowjobs.penstock.dev", "flowsavepoints.penstock.dev")
VARIANTS: dict[str, Object] = {
    "defaults": {},
    "two namespaces": {"watchNamespaces": ["orders", "billing"]},
    "one replica": {"replicas": 1},
    "everything": {
        "watchNamespaces": ["orders"],
        "metrics": {"serviceMonitor": {"create": True, "labels": {"team": "data"}}, "podMonitor": {"create": True}},
        "networkPolicy": {"create": True, "metricsFrom": [{"namespaceSelector": {}}]},
        "serviceAccount": {"annotations": {"example.org/role": "penstock"}},
        "image": {"pullSecrets": [{"name": "registry"}]},
        "extraEnv": [{"name": "A", "value": "b"}],
        "podLabels": {"team": "data"},
        "podAnnotations": {"example.org/scrape": "yes"},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"operator": "Exists"}],
        "priorityClassName": "system-cluster-critical",
    },
    "by others": {
        "crds": {"install": False},
        "rbac": {"create": False},
        "serviceAccount": {"create": False, "name": "other"},
    },
}
REFUSED: dict[str, tuple[Object, str]] = {
    "unknown value": ({"replica": 3}, "replica"),
    "negative replicas": ({"replicas": -1}, "replicas"),
    "bad namespace": ({"watchNamespaces": ["Orders"]}, "watchNamespaces"),
    "namespace twice": ({"watchNamespaces": ["orders", "orders"]}, "watchNamespaces"),
    "pull policy": ({"image": {"operator": {"repository": "x", "pullPolicy": "Sometimes"}}}, "pullPolicy"),
    "no account": ({"serviceAccount": {"create": False, "name": ""}}, "name"),
    "interval": ({"metrics": {"podMonitor": {"interval": "often"}}}, "interval"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_the_chart_renders_is_clean_and_accepted(variant: str, kubectl: Kubectl) -> None:
    values = json.dumps(VARIANTS[variant])
    helm(kubectl, "lint", "--strict", str(CHART), "--values=-", stdin=values)
    rendered = helm(kubectl, "template", "penstock", str(CHART), "--values=-", stdin=values)
    for namespace in ("orders", "billing"):
        rendered = rendered.replace(f"namespace: {namespace}", f"namespace: {kubectl.namespace}")
    # Monitors belong to Prometheus' operator, which is not here.
    known = "\n---\n".join(part for part in rendered.split("\n---\n") if "monitoring.coreos.com" not in part)
    kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename=-", stdin=known)
    assert ("monitoring.coreos.com" in rendered) == (variant == "everything")


@pytest.mark.parametrize("mistake", REFUSED)
def test_values_that_make_no_sense_are_refused_by_name(mistake: str, kubectl: Kubectl) -> None:
    values, named = REFUSED[mistake]
    with pytest.raises(HelmError, match=named):
        helm(kubectl, "template", "penstock", str(CHART), "--values=-", stdin=json.dumps(values))


@pytest.fixture
def release(kubectl: Kubectl, images: Images) -> Iterator[Release]:
    """Not installed yet; of the test's own namespace alone."""
    release = Release(kubectl, images)
    yield release
    release.uninstall()


def test_an_operator_is_installed_twice_upgraded_and_uninstalled_without_a_trace(
    release: Release, kubectl: Kubectl, admin: Kubectl
) -> None:
    ours = [kubectl.namespace]
    notes = release.install(watchNamespaces=ours)
    assert f"kubectl --namespace {kubectl.namespace} rollout status deployment/penstock" in notes
    assert len(pods(kubectl)) == 2
    release.test()

    release.install(watchNamespaces=ours)
    before = pods(kubectl)
    release.install(watchNamespaces=ours)
    assert pods(kubectl) == before

    release.install(watchNamespaces=ours, podLabels={"team": "data"}, replicas=1)
    wait_until("one pod, a new one", lambda: len(pods(kubectl)) == 1 and not pods(kubectl) & before, seconds=90)

    kinds = (
        "all,serviceaccounts,roles,rolebindings,poddisruptionbudgets,networkpolicies,clusterroles,clusterrolebindings"
    )
    mine = "app.kubernetes.io/instance=penstock"
    assert kubectl("get", kinds, f"--selector={mine}", "--output=name").strip()
    release.uninstall()
    wait_until("its pods are gone", lambda: not pods(kubectl), seconds=60)
    left = admin.attempt("get", kinds, "--all-namespaces", f"--selector={mine}", "--output=json")
    names = [item["metadata"] for item in json.loads(left.stdout)["items"]]
    assert not [name for name in names if kubectl.namespace in (name.get("namespace"), name["name"].split(":")[0])]
    for crd in CRDS:
        assert admin.find("crd", crd) is not None


def test_definitions_are_upgraded_with_the_release_that_brought_them_and_left_alone_by_others(
    release: Release, kubectl: Kubectl, admin: Kubectl
) -> None:
    ours = [kubectl.namespace]
    first = release.install(watchNamespaces=ours, replicas=1)
    owner = admin.get("crd", CRDS[0])["metadata"]["annotations"]["meta.helm.sh/release-namespace"]
    if owner != kubectl.namespace:
        assert "are left alone" in first
        for crd in CRDS:  # of an earlier release, which is gone
            annotate = (f"meta.helm.sh/release-namespace={kubectl.namespace}", "meta.helm.sh/release-name=penstock")
            admin("annotate", "--overwrite", "crd", crd, *annotate)
    admin("patch", "crd", CRDS[0], "--type=merge", '--patch={"spec": {"names": {"shortNames": ["old"]}}}')
    release.install(watchNamespaces=ours, replicas=1)
    assert admin.get("crd", CRDS[0])["spec"]["names"]["shortNames"] == ["fj"]


def pods(kubectl: Kubectl) -> set[str]:
    """Those that are to stay."""
    found = kubectl.items("pods", labels="app.kubernetes.io/name=penstock-operator")
    return {pod["metadata"]["uid"] for pod in found if "deletionTimestamp" not in pod["metadata"]}

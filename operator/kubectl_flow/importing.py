"""`kubectl flow savepoints import`: the catalogue of a job, rebuilt from what is in its store."""

import json
from typing import Annotated

import typer

from kubectl_flow import short_pods
from kubectl_flow.kubectl import ContextOption, JobArgument, Kubectl, NamespaceOption, Object, cluster
from penstock.model.errors import UserError
from penstock_operator import names
from penstock_operator.border import place_of, savepoint_folder
from penstock_operator.resources import runs
from penstock_operator.spec.flowjob import FlowJobSpec


def import_savepoints(
    job: JobArgument,
    place: Annotated[
        str | None,
        typer.Option("--from", metavar="PLACE", help="Folder to look in and below. Default: the job's own."),
    ] = None,
    timeout: Annotated[str, typer.Option("--timeout", metavar="5m", help="Of the look into the store.")] = "5m",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be entered.")] = False,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Make a FlowSavepoint of every savepoint in a store that has none; each is verified by the controller.

    A pod with the image and the rights of the job looks into the store. The job may be suspended, not absent.

    Examples: `kubectl flow savepoints import hot-items`, `... import hot-items --from s3://backups/hot-items`
    """
    kubectl = cluster(namespace, context)
    found = kubectl.job(job)
    spec = FlowJobSpec.model_validate(found["spec"])
    folder = place_of(place) if place else savepoint_folder(spec)
    listed = _listed(kubectl, found, spec, folder, timeout)
    known = {
        place_of(text)
        for each in kubectl.items("flowsavepoints")
        for text in ((each.get("status") or {}).get("location"), each["spec"].get("existing"))
        if text
    }
    fresh = [uri for uri in listed if place_of(uri) not in known]
    for uri in fresh:
        name = name_of(uri, job)
        if dry_run:
            print(f"flowsavepoint/{name} would be made: {uri}")
            continue
        made = kubectl.create(_entry(name, job, uri))
        print(f"flowsavepoint/{made['metadata']['name']} was made: {uri}")
    print(f"{len(listed)} savepoints in {folder}; {len(listed) - len(fresh)} were in the catalogue already")


def name_of(uri: str, job: str) -> str:
    """Folders of savepoints have names that may be those of objects; if not, the job's name and their end."""
    folder = uri.partition("?")[0].rstrip("/").rpartition("/")[2].lower()
    cleaned = "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in folder).strip("-.")
    return (cleaned or job)[:253]


def _listed(kubectl: Kubectl, job: Object, spec: FlowJobSpec, folder: str, timeout: str) -> list[str]:
    owner = short_pods.owner_of(job, kubectl)
    with short_pods.run(kubectl, runs.listing(owner, spec, folder), timeout=timeout) as (well, text):
        if not well:
            raise UserError("K015", f"the store cannot be listed: {text.strip()[-800:]}", where=folder)
        return [str(each["uri"]) for each in json.loads(text)]


def _entry(name: str, job: str, uri: str) -> Object:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.FLOWSAVEPOINT,
        "metadata": {"name": name},
        "spec": {"jobRef": {"name": job}, "existing": uri},
    }

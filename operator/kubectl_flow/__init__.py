"""`kubectl flow`: what people do with FlowJobs, from where they have kubectl.

It changes FlowJobs and creates FlowSavepoints, as people may do by hand, and leaves the work to the controller. What
it knows of FlowJobs is the controller's own code; how it prints is that of `penstock`.
"""


def main() -> None:
    """Run one command; the exit code is 0, 1 for what has failed, 2 for a mistake of the user."""
    try:
        import pydantic  # noqa: F401
        import yaml  # noqa: F401
    except ImportError as error:
        raise SystemExit(f"kubectl flow needs {error.name}: pip install 'penstock[kubectl]'") from error
    from kubectl_flow.app import run_command

    run_command()

"""The command line: `penstock ...`."""


def main() -> None:
    """Run one command; the exit code is 0, 1 for a job that failed, 2 for a mistake of the user."""
    # Imported here: a slot process imports the script that started its TaskManager, and needs none of this.
    from penstock.cli.app import run_command

    run_command()

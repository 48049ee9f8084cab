"""Processes of an embedded cluster: see `child`."""

from penstock.local.child import main

if __name__ == "__main__":
    main()

"""`python -m kubectl_flow`."""

from kubectl_flow import main

main()

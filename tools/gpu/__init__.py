"""Checks recordings on the GPU of the machine on which it runs: `python -m tools.gpu`, or `make gpu`."""

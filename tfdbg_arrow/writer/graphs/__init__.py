"""Describes graphs as rows, and adds the ops that make them record."""

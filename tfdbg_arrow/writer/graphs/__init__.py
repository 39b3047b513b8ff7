"""Graphs: what they hold, as rows; and the ops that make them record."""

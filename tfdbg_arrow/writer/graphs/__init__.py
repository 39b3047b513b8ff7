"""Describes graphs as rows, and adds the ops that record their tensors."""

"""Uploads of recordings to logdirs at URLs."""

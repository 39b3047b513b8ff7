"""Logdirs at URLs: what a recording sends there, and when."""

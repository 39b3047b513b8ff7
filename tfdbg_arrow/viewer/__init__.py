"""The viewer of logdirs."""

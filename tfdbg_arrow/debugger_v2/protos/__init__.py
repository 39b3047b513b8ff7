"""Messages of Debugger V2 dumps; README.md says how they are compiled."""

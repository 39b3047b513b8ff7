"""One recording: the objects that it consists of, its observer for the hooks, and the rows that go to the sink."""

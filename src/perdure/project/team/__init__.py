"""A small team over the tasks of a project: supervisor, planner, historian, executor."""

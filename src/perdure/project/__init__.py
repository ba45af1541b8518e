"""The memory of a project: state, sessions, tasks, journal and files of a repository, by commit."""

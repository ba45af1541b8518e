"""Setting up a project and the coding clients that work in it, and taking all of it out again."""

"""Reference layers: Markdown files of a folder, or records of the bank."""

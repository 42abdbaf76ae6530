"""The help pages, their rendering, the command reference and the man page.

A page is a Markdown file of this folder. The command line and the workstation show the same pages. Nothing
here imports Textual, the engine or the commands.
"""

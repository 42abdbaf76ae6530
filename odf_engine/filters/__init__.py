"""Filters: programs that turn what publishers release into files that the readers of ODF can read.

A filter reads standard input and writes standard output. It has no option that names a file, and opens no
connection. So a `prepare` step that runs a filter needs no trust. The package imports only `base`, `errors`
and the archives of `data`.
"""

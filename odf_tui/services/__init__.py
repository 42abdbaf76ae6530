"""Services that the parts of the workbench share: reads in threads, the connection to the worker."""

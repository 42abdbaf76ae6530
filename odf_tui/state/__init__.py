"""State of the workstation: datasets, blocks, jobs, layout. The command line uses most of it as well."""

"""What the worker runs for each kind of job; see :func:`odf_engine.jobs.base.find_work`."""

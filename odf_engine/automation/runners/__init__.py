"""The services of a worker that run flows and deliver alerts. They submit jobs and read the job log."""

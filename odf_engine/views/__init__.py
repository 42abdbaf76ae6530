"""Reading committed data without Spark: row windows, scans, as-at and as-of states, diff, statistics,
export, saved results.
"""

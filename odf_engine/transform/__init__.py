"""Derivative datasets: planning and running transactions, query migration, and the query engines."""

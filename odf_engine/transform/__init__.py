"""Derivative datasets: planning and running transactions, query migration."""

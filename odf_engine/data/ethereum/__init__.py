"""Logs of Ethereum chains: the ABI of events, and filters of logs. Imports no engine and no network."""

"""What operators of a workspace do: checks of its files and environment, private keys, the server."""

"""The smart transfer protocol (WebSocket): messages, connection, client."""

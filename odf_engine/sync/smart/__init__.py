"""Smart transfer protocol (WebSocket): messages, sessions, client."""

"""From events to the client."""

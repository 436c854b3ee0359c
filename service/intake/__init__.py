"""From bytes to a request, or a 4xx that names the field."""

"""What the API and the workers agree on; standard library only."""

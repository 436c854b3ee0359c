"""What steps cost on this machine, and with how many threads to compute."""

"""What can be seen from outside: logs, figures, traces."""

"""What processes report: logs, metrics, traces."""

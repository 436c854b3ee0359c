"""Load and comparisons; nothing here is imported by the product."""

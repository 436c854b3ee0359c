"""Load tests and comparisons; the product imports nothing from here."""

"""Redis is the truth: records, logs, registrations, and the scripts that change them."""

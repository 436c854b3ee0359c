"""From a request's text to tokens: what a user writes is text, and the time is linear."""

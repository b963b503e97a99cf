"""Models that run elsewhere: messages, retries, and both ends. What carries them is not here."""

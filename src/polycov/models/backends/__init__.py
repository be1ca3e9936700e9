"""Faster ways to run a backbone that is not trained, each checked against torch before it is used."""

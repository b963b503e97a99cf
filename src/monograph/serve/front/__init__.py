"""The front of several server processes: it spreads requests over them and asks again elsewhere."""

"""Language models of a server: their engines, fields of requests, and chat templates."""

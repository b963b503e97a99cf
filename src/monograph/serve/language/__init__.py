"""Language models of a server: their queue, sampling on the host, and chat templates."""

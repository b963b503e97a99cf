"""Compiled programs on disk: the object cache, artefacts, packages."""

"""The server as an application of Ray Serve: `serve run monograph.serve.ray:app models=FOLDER`."""

from monograph.serve.ray.application import app

__all__ = ["app"]

"""`monograph diff`: two ways to run a model, compared tensor by tensor."""

"""`monograph view`: one page that shows a model before, between and after the passes, and a run."""

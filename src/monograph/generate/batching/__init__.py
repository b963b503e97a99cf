"""Many sequences at once: slots of one cache, a scheduler, options and draws per sequence."""

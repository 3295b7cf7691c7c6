"""A batch that outlives its process: many prompts in, exactly one record for each out, whatever is killed."""

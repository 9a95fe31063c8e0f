"""The imperative shell: observes, asks the core, saves, acts."""

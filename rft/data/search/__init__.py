"""Questions with short answers, and the corpus that is searched for them. See docs/data.md."""

"""The operator's pages: what `status`, `explain`, `find` and the lists say, and what a word or a button mends."""

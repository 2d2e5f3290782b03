"""`consumer dev --reload`: saves of a plugin are live within seconds, by a fresh process for each version."""

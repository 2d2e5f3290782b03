"""Evidence: what processes say of themselves and of each other, judged for `status`. Pure."""

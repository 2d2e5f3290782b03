"""Archive: bodies of settled events in files of compressed JSON lines, and back."""

"""A handler to copy, with its tests; `consumer handlers new NAME` writes a package from it."""

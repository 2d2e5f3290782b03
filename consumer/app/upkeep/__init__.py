"""What a role does now and then beside its work."""

"""What a command is built from that works beside the roles, and ends."""

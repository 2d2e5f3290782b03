"""What `status` and the alerts say alike: what waits, what is late, who is gone."""

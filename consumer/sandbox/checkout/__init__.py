"""The hosted checkout page and the payer's portal."""

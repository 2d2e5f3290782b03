"""What is wrong, as figures for the alerts: of the ledger, of money and access, of the log."""

"""Reconcile: walks orders, subscriptions and payments, and publishes what differs."""

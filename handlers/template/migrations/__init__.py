"""The plugin's branch of migrations; `consumer db upgrade` runs it with all others."""

"""An operator's word: said, spelled, about something that is there."""

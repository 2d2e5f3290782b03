"""Commands that repair: dead runs, an operator's word, the schema."""
